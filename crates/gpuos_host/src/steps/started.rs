//! When a process was started, which with its number names it for ever.

/// The start time of `/proc/PID/stat`, in the kernel's ticks since boot: field 22. The name before it, in parentheses, may hold anything.
pub(super) fn started(stat: &str) -> Option<u64> {
    let fields = stat.rsplit_once(')')?.1;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}
