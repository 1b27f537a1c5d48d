//! Short forms of what nodes are told and say.
use gpuos_checkpoint::commit::{
    Body, Commit, Digests, Effect, Held, Input, Message, Outcome, Settings, step,
};
use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};

pub const RUN: u32 = 3;

pub fn id(number: u32) -> CheckpointId {
    CheckpointId { number, attempt: 5 }
}

pub fn digest(node: u16) -> Digest {
    Digest([node as u8; 32])
}

pub fn digests(nodes: u16) -> Digests {
    (0..nodes).map(digest).collect::<Vec<_>>().into()
}

pub fn started(node: u16, nodes: u16, held: Vec<Held>) -> (Commit, Vec<Effect>) {
    let mut state = Commit::new(NodeIndex(node), nodes, RUN, Settings::default(), 0);
    let restarted = Input::Restarted {
        held,
        begun: Vec::new(),
        adopt: None,
    };
    let effects = step(&mut state, restarted);
    (state, effects)
}

pub fn node(node: u16, nodes: u16) -> Commit {
    started(node, nodes, Vec::new()).0
}

pub fn held(node: u16, number: u32, committed: Option<Digests>) -> Held {
    Held {
        id: id(number),
        digest: digest(node),
        committed,
    }
}

pub fn message(from: u16, to: u16, number: u32, body: Body) -> Message {
    Message {
        from: NodeIndex(from),
        to: NodeIndex(to),
        run: RUN,
        id: id(number),
        body,
    }
}

/// A message to a node, which is the only thing that happens.
pub fn say(state: &mut Commit, from: u16, to: u16, number: u32, body: Body) -> Vec<Effect> {
    step(state, Input::Received(message(from, to, number, body)))
}

pub fn abort(why: &str) -> Body {
    Body::Abort { why: why.into() }
}

pub fn failed(number: u32, why: &str) -> Effect {
    let why = why.into();
    Effect::TellProgram {
        id: id(number),
        outcome: Outcome::Failed { why },
    }
}

pub fn committed(number: u32) -> Effect {
    Effect::TellProgram {
        id: id(number),
        outcome: Outcome::Committed,
    }
}

pub fn sent(effects: &[Effect]) -> Vec<(u16, Body)> {
    let one = |effect: &Effect| match effect {
        Effect::Send(message) => Some((message.to.0, message.body.clone())),
        _ => None,
    };
    effects.iter().filter_map(one).collect()
}
