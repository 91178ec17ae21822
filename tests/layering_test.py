"""Holds the tree to its rules: who may include whom, what lies where, and which words may not stand in it.

Needs no build:  python3 -m pytest tests/layering_test.py

The rules are the tables below; the functions after them are plain (path, text) -> list of complaints, and the last part
shows each of them a small made-up tree that breaks its rule, so that a checker which stopped checking is found.
"""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# --- Which folder may include which ----------------------------------------------------------------------------------------
# The longest matching prefix of a file's path gives its rule; an include is allowed if it starts with one of the prefixes.
# Includes are written from the root ("server/buffer.h"), except the client's public headers ("replay/client.h").
#
#   generator --> trainer/model <-- trainer          server
#       |                              |             |    |
#       +--------->  client  <---------+             |  storage
#                       |                            |    |
#                       +--------->  schema  <-------+----+
MAY_INCLUDE = {
    "schema/": ["schema/"],
    "storage/": ["storage/", "schema/"],
    "client/": ["client/", "replay/", "schema/"],
    "client/include/replay/": ["replay/"],  # what users compile against: the standard library and nothing else
    "server/": ["server/", "storage/", "schema/"],  # never client/: the two meet in schema/
    "trainer/model/": ["trainer/model/"],  # shared by generator and trainer, which must agree to the bit
    # generator/task.h: the trainer evaluates and warms up on the very task that the generators score.
    "trainer/": ["trainer/", "generator/task.h", "replay/", "schema/json_config.h"],
    "generator/": ["generator/", "trainer/model/", "replay/", "schema/json_config.h"],
    "tests/": ["tests/", "schema/", "storage/", "client/", "replay/", "server/", "trainer/", "generator/"],
}


@dataclass(frozen=True)
class Library:
    """Third-party headers and the only files that may name them. In a pattern * stops at a slash; tests may use them all."""

    headers: str  # matches the beginning of what stands between the brackets
    allowed: tuple = ()


# Where this allows more than one expects from the layers, the reason stands beside it.
LIBRARIES = {
    # Generated readers (schema/*.capnp.h) count as Cap'n Proto. They are wider spread than framing alone, for these reasons:
    #   message.h     its readers and builders are templates over the generated types, so the header needs the library
    #   validate.cc   reads every field of a frame, once; tags.cc one tag
    #   codec.*       translate control messages from and to plain structs, so that nothing behind them sees Cap'n Proto
    #   session.cc, replay_service.cc, connection.*, trajectory.cc   read and build messages in place, without a copy
    "Cap'n Proto": Library(
        r"capnp/|kj/|schema/\w+\.capnp\.h$",
        (
            "schema/message.h",
            "schema/message.cc",
            "schema/validate.cc",
            "schema/tags.cc",
            "schema/column.cc",
            "server/session.cc",
            "server/replay_service.cc",
            "server/codec.h",
            "server/codec.cc",
            "server/decode.h",
            "server/update_codec.cc",
            "server/encode.h",
            "server/version_codec.h",
            "server/version_codec.cc",
            "server/frame_replies.cc",
            "client/codec.h",
            "client/codec.cc",
            "client/options_codec.cc",
            "client/admission_codec.cc",
            "client/reply_reader.h",
            "client/update_codec.cc",
            "client/tag_codec.h",
            "client/request_builder.h",
            "client/reply_decoder.cc",
            "server/reply_encoder.cc",
            "server/breakdown_encoder.h",
            "server/breakdown_encoder.cc",
            "server/history_encoder.cc",
            "client/connection.h",
            "client/connection.cc",
            "client/trajectory.cc",
        ),
    ),
    "Boost.Beast": Library(r"boost/beast", ("server/http.h", "server/http.cc")),
    # Sockets live in wire.h for both sides. The client is more files than one, hence its whole folder, except the command-line
    # tool and the public headers; the server is coroutines throughout; store.* reach the disk pool.
    "Boost.Asio": Library(
        r"boost/(?!beast)",
        ("schema/wire.h", "schema/input_buffer.h", "storage/store.h", "storage/store.cc", "client/*.h", "client/*.cc", "server/*.h", "server/*.cc"),
    ),
    # json_config.h may have a .cc beside it; http.* answers with JSON.
    "nlohmann/json": Library(
        r"nlohmann/",
        (
            "schema/json_config.h",
            "schema/json_config.cc",
            "server/http.h",
            "server/http.cc",
            "client/cli/*.h",
            "client/cli/*.cc",
            "trainer/model/checkpoint.cc",
            "trainer/model/safetensors.cc",
            "trainer/model/tokenizer.h",
            "trainer/model/tokenizer.cc",
            "trainer/journal.cc",  # writes JSON Lines
        ),
    ),
    "xxHash": Library(r"xxh", ("schema/message.cc",)),
    "RocksDB": Library(r"rocksdb/", ("storage/database.cc",)),
    "prometheus-cpp": Library(r"prometheus/", ("server/metrics.h", "server/metrics.cc")),
    # The client library does not log, it returns. The loops of the two binaries do.
    "spdlog": Library(
        r"spdlog/|fmt/",
        ("server/log.h", "server/log.cc", "trainer/main.cc", "trainer/run.cc", "generator/main.cc", "generator/worker.cc"),
    ),
    # The commands of replayctl are spread over files that each declare their own options.
    "CLI11": Library(
        r"CLI/", ("server/main.cc", "trainer/main.cc", "generator/main.cc", "client/cli/*.h", "client/cli/*.cc")
    ),
    "nanobind": Library(r"nanobind/|Python\.h", ("client/python/module.cc",)),
    "PCRE2": Library(r"pcre2", ("trainer/model/tokenizer.cc",)),
    "c10d": Library(r"torch/csrc/distributed/", ("trainer/distributed.h", "trainer/distributed.cc")),
    "LibTorch": Library(
        r"torch/(?!csrc/distributed/)|c10/|ATen/",
        # Not kernels/: a .cu exports plain functions on pointers and sizes.
        ("trainer/*.h", "trainer/*.cc", "trainer/model/*.h", "trainer/model/*.cc", "generator/*.h", "generator/*.cc"),
    ),
    "CUDA": Library(
        r"cuda|cublas|cub/|thrust/|cooperative_groups|mma\.h|nv/", ("trainer/model/kernels/*.h", "trainer/model/kernels/*.cu")
    ),
    # Tests only.
    "GoogleTest": Library(r"gtest/|gmock/"),
    "hiredis": Library(r"hiredis/"),
    "instruction counting and sanitizers": Library(r"valgrind/|sanitizer/"),
}

STANDARD_LIBRARY = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits clocale
    cmath compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring
    ctime cuchar cwchar cwctype deque exception execution filesystem forward_list fstream functional future initializer_list
    iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
    optional ostream queue random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span sstream
    stack stdexcept stop_token streambuf string string_view syncstream system_error thread tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector version
    """.split()
)
# C, POSIX, Linux and the compiler's own. Not for public headers.
SYSTEM = re.compile(
    r"(sys|netinet|arpa|net|linux|asm)/|\w*intrin\.h$|"
    r"(assert|cpuid|ctype|cxxabi|dirent|dlfcn|endian|errno|execinfo|fcntl|fnmatch|getopt|glob|grp|inttypes|limits|malloc|math|netdb|"
    r"poll|pthread|pwd|sched|signal|spawn|stdarg|stddef|stdint|stdio|stdlib|string|strings|syslog|termios|time|ucontext|"
    r"unistd|wait)\.h$"
)

# --- What lies where -------------------------------------------------------------------------------------------------------
TOP_LEVEL = {
    "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md",
    "server", "client", "schema", "storage", "trainer", "generator", "deploy", "tests",
}
# Not there until the first file of theirs is.
TOP_LEVEL_LATER = {"trainer", "generator"}

CODE_SUFFIXES = (".h", ".cc", ".cu")
MAX_LINES = 400  # Past it, look for the noun that wants out. Tests are free.

# server/buffer.cc is tested by tests/server/buffer_test.cc. What is nothing without a socket, a process or a real peer is
# tested through the running daemon instead: the file -> (where, why).
MIRRORED = ("schema", "storage", "server", "client", "generator", "trainer", "trainer/model")
TESTED_ELSEWHERE = {
    "server/storage_thread.cc": ("tests/end_to_end/storage_test", "a thread of the daemon; seen when it starts again"),
    "server/version_codec.cc": ("tests/server/version_registry_test", "rows, as the registry reads them back"),
    "server/server.cc": ("tests/end_to_end/", "puts the parts together, listens and shuts down: only a process shows that"),
    "server/session.cc": ("tests/end_to_end/", "one conversation on a socket; told by what a real peer gets back"),
    "server/session_insert.cc": ("tests/end_to_end/", "a part of session.h"),
    "server/session_columns.cc": ("tests/end_to_end/", "a part of session.h"),
    "server/session_verbs.cc": ("tests/end_to_end/", "a part of session.h"),
    "server/http.cc": ("tests/end_to_end/", "answers over HTTP; asked with a real HTTP client"),
    "server/replay_service.cc": ("tests/end_to_end/", "waits for peers, deadlines and other threads of a running daemon"),
    "server/replay_admission.cc": ("tests/end_to_end/", "a part of replay_service.h"),
    "server/replay_keep.cc": ("tests/end_to_end/storage_test", "a part of replay_service.h"),
    "server/replay_fetch.cc": ("tests/end_to_end/spill_test", "a part of replay_service.h"),
    "server/replay_join.cc": ("tests/end_to_end/joined_test", "a part of replay_service.h"),
    "server/replay_control.cc": ("tests/end_to_end/", "a part of replay_service.h"),
    "server/replay_stats.cc": ("tests/end_to_end/", "a part of replay_service.h"),
    "server/reply_encoder.cc": ("tests/server/codec_test", "a part of codec.h"),
    "server/frame_replies.cc": ("tests/server/codec_test", "a part of codec.h"),
    "server/update_codec.cc": ("tests/server/codec_test", "a part of codec.h"),
    "server/breakdown_encoder.cc": ("tests/server/codec_test", "a part of the Stats reply of codec.h"),
    "server/history_encoder.cc": ("tests/server/codec_test", "a part of codec.h"),
    "server/requests_archive.cc": ("tests/server/buffer_archive_test", "the structs of a state and of its records"),
    "server/buffer_change.cc": ("tests/server/buffer_test", "a part of buffer.h"),
    "server/buffer_groups.cc": ("tests/server/groups_test", "a part of buffer.h"),
    "server/buffer_leases.cc": ("tests/server/leases_test", "a part of buffer.h"),
    "server/buffer_plan.cc": ("tests/server/buffer_test", "a part of buffer.h"),
    "server/buffer_sample.cc": ("tests/server/buffer_test", "a part of buffer.h"),
    "server/buffer_stats.cc": ("tests/server/buffer_test", "a part of buffer.h"),
    "server/cohorts.cc": ("tests/server/buffer_sim_test", "seen through staleness and withheld counts, against the model"),
    "server/verdict.cc": ("tests/server/metrics_test", "names of enumerators, seen where they are shown"),
    "client/reply_decoder.cc": ("tests/client/codec_test", "a part of codec.h"),
    "client/update_codec.cc": ("tests/client/codec_test", "a part of codec.h"),
    "client/options_codec.cc": ("tests/client/codec_test", "a part of codec.h"),
    "client/admission_codec.cc": ("tests/client/codec_test", "a part of codec.h"),
    "client/calls.cc": ("tests/client/client_test", "the calls of a Client, made through it"),
    "client/writer_core.cc": ("tests/client/writer_test", "the background half of a Writer"),
    "client/sampler_core.cc": ("tests/client/sampler_test", "the background half of a Sampler"),
    "generator/worker.cc": ("tests/end_to_end/training_test", "a loop around a daemon and published weights"),
    "trainer/run.cc": ("tests/end_to_end/training_test", "a loop around a daemon and generators"),
}

# --- Words -----------------------------------------------------------------------------------------------------------------
# (what it is, pattern, the suffixes it is looked for in; none: every text file). Written so that they do not match themselves.
FORBIDDEN = [
    ("a path of one machine", re.compile(r"(?<![\w.~-])/(?:work|farm)(?=/)"), None),
    ("a number in somebody's list of tasks", re.compile(r"\bissues? ?#\d+", re.IGNORECASE), None),
    ("a note of unfinished work", re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b"),
     CODE_SUFFIXES + (".capnp", ".py", ".sh", ".txt", ".cmake", ".json", ".yaml", ".yml")),
]

INCLUDE = re.compile(r"""^[ \t]*\#[ \t]*include(?:_next)?\b[ \t]*(?:(?P<mark>[<"])(?P<name>[^>"\n]+)[>"])?""", re.MULTILINE)
CAPNP_IMPORT = re.compile(r'\b(?:import|embed)\s+"(?P<name>[^"]+)"')
# Strings are matched to be kept: what looks like a comment inside them is none.
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


# --- Checkers --------------------------------------------------------------------------------------------------------------
def path_matches(path, pattern):
    """fnmatch whose * does not cross a slash."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]*"), path) is not None


def without_comments(text):
    """The text with its comments gone, but not their line ends, so that line numbers stay right."""
    return COMMENT_OR_STRING.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", "", match[0]), text)


def includes_of(text):
    """[(line number, mark, name)]; mark and name are None where the include is not a plain one."""
    text = without_comments(text)
    return [(text.count("\n", 0, match.start()) + 1, match["mark"], match["name"]) for match in INCLUDE.finditer(text)]


def allowed_prefixes(path):
    folders = [folder for folder in MAY_INCLUDE if path.startswith(folder)]
    return MAY_INCLUDE[max(folders, key=len)] if folders else None


def include_errors(path, text):
    """Complaints about the includes of one C++ or CUDA file."""
    allowed = allowed_prefixes(path)
    if allowed is None:
        return [f"{path}: code in a folder that has no line in MAY_INCLUDE"]
    errors = []
    for line, mark, name in includes_of(text):
        if name is None:
            errors.append(f"{path}:{line}: an include must name its file plainly")
            continue
        where = f'{path}:{line}: "{name}"'
        library = next((each for each in LIBRARIES if re.match(LIBRARIES[each].headers, name)), None)
        if library is not None:
            patterns = LIBRARIES[library].allowed
            if not path.startswith("tests/") and not any(path_matches(path, pattern) for pattern in patterns):
                errors.append(f"{where} is {library}, allowed only in {', '.join(patterns + ('tests/',))}")
            if not name.endswith(".capnp.h"):  # a generated header is also a header of schema/
                continue
        if mark == "<":
            if library is None and name not in STANDARD_LIBRARY:
                if not SYSTEM.match(name):
                    errors.append(f"{where} is of no known library: add it to LIBRARIES, STANDARD_LIBRARY or SYSTEM")
                elif path.startswith("client/include/"):
                    errors.append(f"{where} is a system header; public headers include only the standard library")
            continue
        if "/" not in name or name.startswith("."):
            errors.append(f"{where}: write project includes from the root, e.g. \"server/buffer.h\"")
        elif not any(name.startswith(prefix) for prefix in allowed):
            errors.append(f"{where} is not for this folder, which may include {', '.join(allowed)}")
    return errors


def capnp_import_errors(path, text):
    """Complaints about a .capnp file: they live in schema/ and import the library's own files or their neighbours."""
    errors = [] if path.startswith(("schema/", "tests/")) else [f"{path}: Cap'n Proto schemas live in schema/"]
    lines = [line.split("#", 1)[0] for line in text.splitlines()]
    for number, line in enumerate(lines, 1):
        for match in CAPNP_IMPORT.finditer(line):
            if not re.fullmatch(r"/capnp/[\w+.-]+|[\w.-]+\.capnp", match["name"]):
                errors.append(f"{path}:{number}: imports \"{match['name']}\", neither /capnp/... nor a file beside it")
    return errors


def header_errors(path, text):
    """The first thing in a header, comments aside, is #pragma once."""
    if re.match(r"\s*#pragma once[ \t]*(\n|$)", without_comments(text)):
        return []
    return [f"{path}: a header begins with #pragma once"]


def length_errors(path, text):
    lines = len(text.splitlines())
    if path.startswith("tests/") or lines <= MAX_LINES:
        return []
    return [f"{path}: {lines} lines, more than {MAX_LINES}: look for the noun that wants a file of its own"]


def word_errors(path, text):
    errors = []
    for what, pattern, suffixes in FORBIDDEN:
        if suffixes is not None and not path.endswith(suffixes):
            continue
        for match in pattern.finditer(text):
            errors.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1}: \"{match[0]}\" is {what}")
    return errors


def top_level_errors(paths):
    present = {path.split("/", 1)[0] for path in paths}
    present = {name for name in present if not name.startswith(".")}
    errors = [f"{name}: not a name of the top level" for name in sorted(present - TOP_LEVEL)]
    return errors + [f"{name}: missing from the top level" for name in sorted(TOP_LEVEL - TOP_LEVEL_LATER - present)]


def mirror_errors(paths, tested_elsewhere):
    """Every source file has its test: folder/x.cc <-> tests/folder/x_test.cc. `tested_elsewhere` must stay true as well."""
    paths = set(paths)
    errors = []
    for path in sorted(paths):
        folder, _, name = path.rpartition("/")
        if folder not in MIRRORED or not name.endswith(".cc") or name == "main.cc":
            continue
        test = f"tests/{folder}/{name.removesuffix('.cc')}_test.cc"
        if path not in tested_elsewhere:
            if test not in paths:
                errors.append(f"{path}: has no test {test}")
            continue
        where, _ = tested_elsewhere[path]
        if test in paths:
            errors.append(f"{path}: has a test, take it out of TESTED_ELSEWHERE")
        elif not any(each.startswith(where) for each in paths):
            errors.append(f"{path}: TESTED_ELSEWHERE says {where}, which is empty")
    return errors


# --- The tree --------------------------------------------------------------------------------------------------------------
def tree_paths():
    """Every file that git tracks or would add; without git (an unpacked archive), every file outside build/."""
    # safe.directory: the clone may belong to another user than the one who tests it.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        hidden_or_built = re.compile(r"\.git/|build/|.*__pycache__/")
        listed = [file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*")]
        listed = [path for path in listed if not hidden_or_built.match(path)]
    return sorted({path for path in listed if path and (ROOT / path).is_file()})


PATHS = tree_paths()


def text_of(path):
    """The file's text, or None for one that is not text."""
    data = (ROOT / path).read_bytes()
    return None if b"\0" in data[:8192] else data.decode(errors="replace")


def complaints(checker, suffixes=None):
    errors = []
    for path in PATHS:
        text = text_of(path) if suffixes is None or path.endswith(suffixes) else None
        if text is not None:
            errors += checker(path, text)
    return errors


def report(errors):
    """Fails with one complaint a line; pytest would fold a compared list."""
    if errors:
        pytest.fail(f"{len(errors)} complaints\n  " + "\n  ".join(errors), pytrace=False)


def test_the_tree_is_seen():
    assert {"schema/message.cc", "schema/wire.h", "tests/layering_test.py"} <= set(PATHS)


def test_includes_follow_the_layers():
    report(complaints(include_errors, CODE_SUFFIXES))


def test_schemas_import_only_their_neighbours():
    report(complaints(capnp_import_errors, ".capnp"))


def test_headers_begin_with_pragma_once():
    report(complaints(header_errors, ".h"))


def test_sources_are_short():
    report(complaints(length_errors, CODE_SUFFIXES))


def test_no_forbidden_words():
    report(complaints(word_errors))


def test_top_level_is_exactly_as_designed():
    report(top_level_errors(PATHS))


def test_every_source_has_its_test():
    report(mirror_errors(PATHS, TESTED_ELSEWHERE))


# --- The checkers themselves -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "path, include",
    [
        ("schema/wire.h", "<boost/asio/io_context.hpp>"),
        ("schema/wire.h", "<netinet/tcp.h>"),
        ("schema/message.h", "<capnp/message.h>"),
        ("schema/message.cc", "<xxhash.h>"),
        ("schema/validate.cc", '"schema/trajectory.capnp.h"'),
        ("storage/store.h", '"schema/message.h"'),
        ("storage/database.cc", "<rocksdb/db.h>"),
        ("server/buffer.h", '"storage/store.h"'),
        ("server/http.cc", "<boost/beast/http.hpp>"),
        ("server/codec.h", '"schema/protocol.capnp.h"'),
        ("client/client.cc", '"replay/client.h"'),
        ("client/cli/json.h", "<nlohmann/json.hpp>"),
        ("client/include/replay/client.h", "<string>"),
        ("client/include/replay/client.h", '"replay/trajectory.h"'),
        ("trainer/main.cc", '"replay/client.h"'),
        ("trainer/distributed.cc", "<torch/csrc/distributed/c10d/ProcessGroup.hpp>"),
        ("generator/rollout.cc", '"trainer/model/transformer.h"'),
        ("trainer/evaluate.h", '"generator/task.h"'),
        ("generator/main.cc", '"schema/json_config.h"'),
        ("trainer/model/kernels/attention.cu", "<cuda_runtime.h>"),
        ("tests/server/buffer_test.cc", "<gtest/gtest.h>"),
        ("tests/bench/redis.cc", "<hiredis/hiredis.h>"),
    ],
)
def test_an_allowed_include_passes(path, include):
    assert include_errors(path, f"#include {include}\n") == []


@pytest.mark.parametrize(
    "path, include, complaint",
    [
        ("schema/message.cc", '"server/buffer.h"', "not for this folder"),
        ("schema/limits.h", '"storage/store.h"', "not for this folder"),
        ("storage/store.cc", '"server/buffer.h"', "not for this folder"),
        ("server/session.cc", '"client/codec.h"', "not for this folder"),
        ("server/session.cc", '"replay/client.h"', "not for this folder"),
        ("client/client.cc", '"server/buffer.h"', "not for this folder"),
        ("client/client.cc", '"storage/store.h"', "not for this folder"),
        ("client/include/replay/client.h", '"schema/limits.h"', "not for this folder"),
        ("client/include/replay/client.h", '"client/connection.h"', "not for this folder"),
        ("client/include/replay/client.h", "<boost/asio/io_context.hpp>", "is Boost.Asio"),
        ("client/include/replay/client.h", "<sys/socket.h>", "system header"),
        ("client/cli/main.cc", "<boost/asio/io_context.hpp>", "is Boost.Asio"),
        ("trainer/batch.cc", '"schema/message.h"', "not for this folder"),
        ("trainer/batch.cc", '"client/connection.h"', "not for this folder"),
        ("trainer/run.cc", '"generator/worker.h"', "not for this folder"),
        ("trainer/model/tokenizer.cc", '"trainer/batch.h"', "not for this folder"),
        ("generator/rollout.cc", '"trainer/loss.h"', "not for this folder"),
        ("trainer/model/kernels/attention.cu", "<torch/torch.h>", "is LibTorch"),
        ("trainer/batch.cc", "<cuda_runtime.h>", "is CUDA"),
        ("schema/limits.h", "<capnp/message.h>", "is Cap'n Proto"),
        ("server/buffer.cc", '"schema/protocol.capnp.h"', "is Cap'n Proto"),
        ("server/buffer.cc", "<kj/common.h>", "is Cap'n Proto"),
        ("server/session.cc", "<boost/beast/core.hpp>", "is Boost.Beast"),
        ("server/buffer.cc", "<nlohmann/json.hpp>", "is nlohmann/json"),
        ("server/buffer.cc", "<xxhash.h>", "is xxHash"),
        ("server/buffer.cc", "<rocksdb/db.h>", "is RocksDB"),
        ("server/buffer.cc", "<prometheus/counter.h>", "is prometheus-cpp"),
        ("client/client.cc", "<spdlog/spdlog.h>", "is spdlog"),
        ("server/server.cc", "<CLI/CLI.hpp>", "is CLI11"),
        ("server/buffer.cc", "<gtest/gtest_prod.h>", "is GoogleTest"),
        ("server/buffer.cc", "<somebody/else.h>", "no known library"),
        ("tests/server/buffer_test.cc", "<somebody/else.h>", "no known library"),
        ("server/buffer.cc", '"buffer.h"', "from the root"),
        ("server/buffer.cc", '"../schema/limits.h"', "from the root"),
        ("server/buffer.cc", "HEADER", "plainly"),
        ("elsewhere/file.cc", "<string>", "no line in MAY_INCLUDE"),
    ],
)
def test_a_forbidden_include_is_reported(path, include, complaint):
    errors = include_errors(path, f"#pragma once\n  #  include {include}  // why\n")
    assert len(errors) == 1 and complaint in errors[0], errors
    assert errors[0].startswith(f"{path}:2:") or path.startswith("elsewhere/")


def test_comments_include_nothing():
    text = '// client/*.cc #include "server/a.h"\n/* one\n#include "server/b.h"\n*/\n#include "server/pacing.h"  // */\n'
    assert includes_of(text) == [(5, '"', "server/pacing.h")]
    assert len(includes_of('#include <string>\nconst char* glob = "server/*";\n#include <map>\n/* */\n')) == 2


def test_foreign_schema_imports_are_reported():
    good = 'using Cxx = import "/capnp/c++.capnp";  # import "server/x.capnp"\nusing T = import "trajectory.capnp";\n'
    assert capnp_import_errors("schema/protocol.capnp", good) == []
    assert len(capnp_import_errors("schema/protocol.capnp", 'using T = import "../server/x.capnp";\n')) == 1
    assert len(capnp_import_errors("server/protocol.capnp", "")) == 1


def test_missing_pragma_once_is_reported():
    assert header_errors("a.h", "// What it is.\n\n#pragma once\n#include <string>\n") == []
    assert header_errors("a.h", "#pragma once\n") == []
    for text in ("", "int x;\n", "#include <string>\n#pragma once\n", "// #pragma once\n", "#ifndef A_H\n#define A_H\n"):
        assert len(header_errors("a.h", text)) == 1, text


def test_long_sources_are_reported():
    assert length_errors("server/a.cc", "x\n" * 400) == []
    assert "401 lines" in length_errors("server/a.cc", "x\n" * 401)[0]
    assert length_errors("tests/server/a_test.cc", "x\n" * 401) == []


def test_forbidden_words_are_reported():
    slash = "/"
    for text in (f"see {slash}work/main", f'"{slash}farm/x"', "fixes Iss" "ue #12", "iss" "ue#12", "// TO" "DO: x"):
        assert len(word_errors("server/a.cc", "line\n" + text)) == 1, text
        assert word_errors("server/a.cc", "line\n" + text)[0].startswith("server/a.cc:2:")
    for text in ("net/work/x", "~/work/x", "a.XXXX" "XX", "chriskohlhoff/asio#858", "clients issue 64 calls", "TO" "DOS"):
        assert word_errors("server/a.cc", text) == [], text
    assert word_errors("README.md", "TO" "DO lists") == []


def test_a_wrong_top_level_is_reported():
    complete = [name if "." in name or name == "LICENSE" else f"{name}/file" for name in TOP_LEVEL]
    assert top_level_errors(complete + [".clang-format", ".ci/run"]) == []
    assert top_level_errors([path for path in complete if not path.startswith("trainer/")]) == []
    assert top_level_errors(complete + ["tools/x.py"]) == ["tools: not a name of the top level"]
    assert top_level_errors([path for path in complete if path != "LICENSE"]) == ["LICENSE: missing from the top level"]


def test_missing_tests_are_reported():
    paths = ["server/buffer.cc", "tests/server/buffer_test.cc", "server/main.cc", "client/cli/json.cc", "schema/wire.h"]
    assert mirror_errors(paths, {}) == []
    assert mirror_errors(paths + ["storage/store.cc"], {}) == ["storage/store.cc: has no test tests/storage/store_test.cc"]
    elsewhere = {"server/http.cc": ("tests/end_to_end/", "why")}
    assert mirror_errors(["server/http.cc", "tests/end_to_end/http_test.py"], elsewhere) == []
    assert "is empty" in mirror_errors(["server/http.cc"], elsewhere)[0]
    assert "take it out" in mirror_errors(["server/http.cc", "tests/server/http_test.cc"], elsewhere)[0]
