//! The step function.

use super::config::Config;
use super::input::{Effect, Input};
use super::record::Record;
use super::view::View;

/// The broker of a node.
pub struct Broker {
    config: Config,
}

impl Broker {
    /// A broker that knows nothing yet.
    pub fn new(config: Config) -> Broker {
        Broker { config }
    }

    /// Something happened at a time in ms; what is to be done about it, in this order.
    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Effect> {
        let _ = (now_ms, input, &self.config);
        Vec::new()
    }

    /// What a new journal begins with: all that there is.
    pub fn journal(&self) -> Vec<Record> {
        Vec::new()
    }

    /// What there is to see.
    pub fn view(&self) -> View {
        View {
            gpus: Vec::new(),
            host: Default::default(),
            nvme: Default::default(),
            clients: Vec::new(),
            pressure: false,
        }
    }
}
