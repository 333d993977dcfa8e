"""What files and functions of C may be called."""

import re
from collections.abc import Collection

from ptqc.errors import UsageError
from ptqc.utils.arguments import shown

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Headers of C, POSIX and libc: another one of their name would be included in their place.
_HEADERS = (
    "aio alloca assert complex cpio cpuid ctype dirent dlfcn endian errno fcntl features fenv float fmtmsg fnmatch ftw "
    "glob grp iconv inttypes iso646 langinfo libgen limits locale malloc math memory monetary mqueue ndbm netdb "
    "nl_types poll pthread pwd regex sched search semaphore setjmp signal spawn stdalign stdarg stdatomic stdbool "
    "stddef stdint stdio stdlib stdnoreturn string strings stropts syslog tar termios tgmath threads time uchar ulimit "
    "unistd utime utmpx wchar wctype wordexp"
)
HEADERS = frozenset(_HEADERS.split())


def check_c_name(name: object, functions: Collection[str] = ()) -> None:
    """Raises UsageError for what is no name of C, or stands in the place of a header or one of these functions.

    functions: of libc, by what follows the name in those of ptqc.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"c_name is {shown(name)}; give letters, digits and _, a letter first")
    lower = name.lower()  # there are file systems that do not tell letters apart
    clashes = [f"{lower}.h"] if lower in HEADERS else [one for one in functions if one.rpartition("_")[0] == lower]
    if clashes:
        raise UsageError(
            f"c_name is {shown(name)}, but the system has a {clashes[0]}: give another name, such as {lower}_net"
        )
