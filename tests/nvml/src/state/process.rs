//! Processes that are on a GPU as long as they live.

use super::Process;

impl Process {
    /// Whether this place has a process, and one that is not gone by itself.
    pub fn is_alive(&self) -> bool {
        self.pid != 0 && (self.started == 0 || process_start(self.pid) == Some(self.started))
    }
}

/// When a process started, as the low half of the kernel's clock ticks since boot and never 0; none when
/// there is no such process, or nothing of it but its exit status. A number that was given again has another start.
pub fn process_start(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // proc(5): field 22, of which the state is field 3.
    let ticks: u64 = fields.nth(18)?.parse().ok()?;
    Some((ticks as u32).max(1))
}
