//! What a step has to do and to say. What a leader says to its own node's part is kept apart: it needs no network.
use std::collections::VecDeque;

use super::message::{Body, Effect, Message, Outcome};
use crate::ids::{CheckpointId, NodeIndex};

/// Collects effects in their order.
pub(super) struct Outbox {
    pub(super) own: NodeIndex,
    pub(super) run: u32,
    pub(super) effects: Vec<Effect>,
    /// Messages to this node.
    pub(super) inner: VecDeque<Message>,
}

impl Outbox {
    pub(super) fn say(&mut self, to: NodeIndex, id: CheckpointId, body: Body) {
        let message = Message {
            from: self.own,
            to,
            run: self.run,
            id,
            body,
        };
        match to == self.own {
            true => self.inner.push_back(message),
            false => self.effects.push(Effect::Send(message)),
        }
    }

    pub(super) fn to(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn tell(&mut self, id: CheckpointId, outcome: Outcome) {
        self.effects.push(Effect::TellProgram { id, outcome });
    }
}
