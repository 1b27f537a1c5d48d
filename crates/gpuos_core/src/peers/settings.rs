//! `[heartbeat]` as values.

/// What is done about a node that its peers find silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Act {
    /// No heartbeats at all.
    Off,
    /// It is told: in the log, to watchers, in the metrics.
    #[default]
    Warn,
    /// slurmctld is asked to set it DOWN, which requeues its jobs.
    Down,
}

/// `[heartbeat]`. Times are in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatConfig {
    /// What is done.
    pub act: Act,
    /// UDP port; 0: the number of the node's slurmd, which uses it for TCP only.
    pub port: u16,
    /// Between two pings of a node.
    pub interval_ms: u64,
    /// After so long without an answer a node is looked into.
    pub silent_ms: u64,
    /// The same for a node whose kernel takes connections while its slurmd says nothing: it may be swapping.
    pub hung_ms: u64,
}

impl Default for HeartbeatConfig {
    fn default() -> HeartbeatConfig {
        HeartbeatConfig {
            act: Act::default(),
            port: 0,
            interval_ms: 400,
            silent_ms: 2000,
            hung_ms: 20_000,
        }
    }
}
