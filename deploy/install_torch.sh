#!/usr/bin/env bash
# Installs LibTorch, which generator and trainer are built with, outside the source tree. See --help.
set -euo pipefail

readonly torch_version=2.11.0
# What libtorch_cpu.so itself is linked with, as the wheel of torch names it. The other gigabytes that pip would bring along
# are for libtorch_cuda.so, which a CPU build never loads.
readonly packages=("torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
# For the picture that deploy/demo.sh ends with.
readonly plot_packages=(numpy==2.2.6 matplotlib==3.10.3)

usage() {
  cat <<TEXT
usage: deploy/install_torch.sh [--plot] [--print-dir]

Makes a Python virtual environment with the wheel of PyTorch $torch_version from PyPI (about 530 MB to download, 1 GB on disk) and
the two small NVIDIA libraries that its CPU half is linked with. Nothing when it is there already; no CUDA toolkit is needed.
The folder is \$REPLAY_TORCH_VENV, by default ~/.cache/replay/venv-torch, and serves every source tree. CMake looks there.

  --plot       also matplotlib, for the picture of deploy/demo.sh
  --print-dir  print the folder with LibTorch's include and lib, and install nothing
  --help       this text

Exit status: 0 installed, 1 installing failed or --print-dir found nothing, 2 wrong arguments.
TEXT
}

plot=no
print=no
for argument in "$@"; do
  case "$argument" in
    --plot) plot=yes ;;
    --print-dir) print=yes ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "install_torch.sh: unknown argument \"$argument\"" >&2
      usage >&2
      exit 2
      ;;
  esac
done

readonly venv="${REPLAY_TORCH_VENV:-$HOME/.cache/replay/venv-torch}"

TorchDir() {
  local folder
  for folder in "$venv"/lib/python3*/site-packages/torch; do
    if [[ -e "$folder/lib/libtorch_cpu.so" ]]; then
      echo "$folder"
      return
    fi
  done
  return 1
}

if [[ $print == yes ]]; then
  TorchDir || {
    echo "install_torch.sh: there is no LibTorch below $venv" >&2
    exit 1
  }
  exit 0
fi

# Two trees may install at one time: one of them waits.
mkdir -p "$(dirname "$venv")"
exec 9>"$venv.lock"
flock 9

HasPackages() { # by the metadata that pip leaves, without starting Python
  local package name
  for package in "$@"; do
    name="${package%%==*}"
    compgen -G "$venv/lib/python3*/site-packages/${name//-/_}-${package##*==}.dist-info" >/dev/null || return 1
  done
}

# pip writes a package's metadata last, so that an interrupted installation is seen.
if ! HasPackages "${packages[@]}" || ! TorchDir >/dev/null; then
  echo "Installing PyTorch $torch_version into $venv"
  if [[ ! -x "$venv/bin/pip" ]]; then /usr/bin/python3 -m venv "$venv"; fi
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-input --no-deps "${packages[@]}" </dev/null
fi
if [[ $plot == yes ]] && ! HasPackages "${plot_packages[@]}"; then
  echo "Installing matplotlib into $venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-input "${plot_packages[@]}" </dev/null
fi

folder="$(TorchDir)" || {
  echo "install_torch.sh: pip succeeded, yet there is no libtorch_cpu.so below $venv" >&2
  exit 1
}
missing="$(ldd "$folder/lib/libtorch_cpu.so" | grep 'not found' || true)"
if [[ -n "$missing" ]]; then
  printf 'install_torch.sh: libtorch_cpu.so misses libraries:\n%s\n' "$missing" >&2
  exit 1
fi
echo "LibTorch $torch_version: $folder"
