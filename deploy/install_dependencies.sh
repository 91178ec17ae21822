#!/usr/bin/env bash
# Installs with apt what replayd is built, run and tested with. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: deploy/install_dependencies.sh [--minimal] [--list]

Installs the packages that replayd needs, from the distribution's own archive, without asking anything.
Debian 12 and Ubuntu 24.04. Needs root, or sudo. When nothing is missing it neither needs root nor touches the network.

  --minimal  only what building and running the daemon, the client library and replayctl takes:
             no clang, no test tools, no Redis (configure with -DREPLAY_TESTS=OFF), nothing for LibTorch
  --list     print the packages, one a line, and install nothing
  --help     this text

Exit status: 0 all packages are installed, 1 installing failed, 2 wrong arguments or a distribution it does not know.
TEXT
}

# Another file can be given to see the list of another distribution.
readonly os_release_file="${OS_RELEASE_FILE:-/etc/os-release}"

minimal=no
list=no
for argument in "$@"; do
  case "$argument" in
    --minimal) minimal=yes ;;
    --list) list=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "install_dependencies.sh: unknown argument \"$argument\"" >&2
      usage >&2
      exit 2
      ;;
  esac
done

# --- Which packages --------------------------------------------------------------------------------------------------------
build_packages=(
  g++        # Debian 12: g++ 12, Ubuntu 24.04: g++ 13
  cmake
  ninja-build
  ccache     # every preset compiles through it
  pkg-config # finds the libraries that ship no CMake package
  libcapnp-dev
  capnproto  # the schema compiler
  librocksdb-dev
  prometheus-cpp-dev
  nlohmann-json3-dev
  libssl-dev
  libcli11-dev
  libspdlog-dev
  libxxhash-dev
)
test_packages=(
  git # lists the files that the checks look at
  clang
  clang-format
  clang-tidy
  libgtest-dev
  libgmock-dev
  libhiredis-dev # the benchmarks compare with Redis
  redis-server
  valgrind # counts instructions
  python3
  python3-venv # for the wheel of LibTorch, deploy/install_torch.sh
  python3-pytest
  curl
  iproute2 # ss
)

# Prints "debian 12", "ubuntu 24.04", ...; in a subshell, since the file sets variables of many names.
distribution_of() (
  # shellcheck disable=SC1090  # the file is the system's
  . "$1"
  echo "${ID:-unknown} ${VERSION_ID:-}"
)

if [[ ! -r "$os_release_file" ]]; then
  echo "install_dependencies.sh: cannot read $os_release_file, so this is neither Debian 12 nor Ubuntu 24.04" >&2
  exit 2
fi
distribution="$(distribution_of "$os_release_file")"
readonly distribution
case "$distribution" in
  "debian 12")
    # Debian's default Boost is 1.74; replayd is written against 1.81, which therefore has to be named. The sanitizer
    # runtimes of clang are only recommended by it, and recommended packages are not installed here.
    boost_package=libboost1.81-dev
    test_packages+=(libclang-rt-14-dev)
    ;;
  "ubuntu 24.04")
    boost_package=libboost1.83-dev
    test_packages+=(libclang-rt-18-dev)
    ;;
  *)
    echo "install_dependencies.sh: this is \"$distribution\"; only Debian 12 and Ubuntu 24.04 are known here." >&2
    echo "Elsewhere, install a C++20 compiler, Boost 1.81 or newer and the libraries below by your own means:" >&2
    echo "  ${build_packages[*]}" >&2
    exit 2
    ;;
esac
build_packages+=("$boost_package")

packages=("${build_packages[@]}")
if [[ $minimal == no ]]; then packages+=("${test_packages[@]}"); fi

if [[ $list == yes ]]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

# --- What is missing -------------------------------------------------------------------------------------------------------
# A whole line: "not-installed" and "half-installed" are states too. One line for each architecture.
is_installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

missing=()
for package in "${packages[@]}"; do
  if ! is_installed "$package"; then missing+=("$package"); fi
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "All ${#packages[@]} packages are already installed: nothing to do."
  exit 0
fi

# Two versions of the Boost headers cannot be installed at once, and apt would silently remove the older one together with
# everything built on it. That is for the owner of the machine to decide.
if ! is_installed "$boost_package"; then
  other_boost="$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' 'libboost1.*-dev' 2>/dev/null |
    awk '$2 == "installed" && $1 ~ /^libboost1\.[0-9]+-dev$/ { print $1 }' | paste -sd ' ' || true)"
  if [[ -n "$other_boost" ]]; then
    echo "install_dependencies.sh: $other_boost is installed, and $boost_package, which replayd needs, conflicts with it." >&2
    echo "Nothing was changed. Remove it first (this also removes the packages that depend on it):" >&2
    echo "  apt-get remove $other_boost" >&2
    exit 1
  fi
fi

if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_dependencies.sh: installing needs root, and there is no sudo. Missing: ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing needs root: going on through sudo."
  exec sudo -- "$BASH" "$(realpath "${BASH_SOURCE[0]}")" "$@"
fi

# --- Install ---------------------------------------------------------------------------------------------------------------
echo "Installing on $distribution ${#missing[@]} of ${#packages[@]} packages:"
printf '  %s\n' "${missing[@]}"

# The tests start a Redis of their own. The package would start one as a service and at every boot: a policy that refuses just
# this service keeps the first from happening, disabling it the second. A Redis that was there before is left as it is.
readonly policy=/usr/sbin/policy-rc.d
wrote_policy=no
new_redis=no
# shellcheck disable=SC2317  # called by the trap
remove_policy() {
  if [[ $wrote_policy == yes ]]; then rm -f "$policy"; fi
}
trap remove_policy EXIT
trap 'exit 130' INT TERM
if [[ " ${missing[*]} " == *" redis-server "* ]]; then
  new_redis=yes
  if [[ ! -e "$policy" ]]; then
    wrote_policy=yes
    cat >"$policy" <<'TEXT'
#!/bin/sh
# Written by replayd's install_dependencies.sh for as long as it runs. 101: do not start this service.
case "$1" in redis-server*) exit 101 ;; esac
exit 0
TEXT
    chmod 755 "$policy"
  fi
fi

export DEBIAN_FRONTEND=noninteractive
# --no-remove: rather fail than take away something that is installed.
apt_options=(-q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
apt-get "${apt_options[@]}" update </dev/null || exit 1
apt-get "${apt_options[@]}" install -y --no-install-recommends --no-remove "${missing[@]}" </dev/null || exit 1

if [[ $new_redis == yes && -d /run/systemd/system ]]; then
  systemctl disable --now redis-server.service </dev/null ||
    echo "install_dependencies.sh: could not disable the redis-server service; replayd does not need it" >&2
fi

# apt-get says 0 also where a package turned out to be virtual: look.
for package in "${missing[@]}"; do
  if ! is_installed "$package"; then
    echo "install_dependencies.sh: apt-get succeeded, yet $package is not installed" >&2
    exit 1
  fi
done
echo "Installed: ${#missing[@]}; all ${#packages[@]} packages are there."
