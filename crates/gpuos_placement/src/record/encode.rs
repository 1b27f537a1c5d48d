//! The events of a decision in postcard's form, field by field.
//!
//! serde makes the same bytes, from code ten times as long. In slurmctld that code has left the
//! processor's caches from one decision to the next, and fetching it anew is nearly all that it costs.
use gpuos_model::gpuset::GpuSet;
use serde::Serialize;

use super::event::{Asked, By, Event, Purpose};
use crate::plan::{GpuShape, NodeState, Placement, Request};

/// The number of [`Event::Gangs`] among the events.
const GANGS: u64 = 9;

/// Writes an event; how many bytes it takes, or `None` where they do not fit.
pub fn encode(event: &Event<'_>, bytes: &mut [u8]) -> Option<usize> {
    let mut out = Out {
        bytes,
        at: 0,
        fits: true,
    };
    match event {
        Event::Nodes { from, count, state } => {
            out.numbers(&[0, (*from).into(), (*count).into()]);
            out.state(state);
        }
        Event::Offered { from, count, yes } => {
            out.numbers(&[1, (*from).into(), (*count).into(), (*yes).into()]);
        }
        Event::Asked(asked) => {
            out.number(2);
            out.asked(asked);
        }
        Event::Ended { job, outcome } => out.numbers(&[3, (*job).into(), *outcome as u64]),
        _ => out.by_serde(event),
    }
    out.fits.then_some(out.at)
}

/// Writes [`Event::Gangs`], of gangs that lie elsewhere; how many bytes it takes, or `None` where they do
/// not fit.
pub fn encode_gangs<'a>(
    gangs: impl ExactSizeIterator<Item = (u32, &'a [(u32, GpuSet)], u32)>,
    bytes: &mut [u8],
) -> Option<usize> {
    let mut out = Out {
        bytes,
        at: 0,
        fits: true,
    };
    out.numbers(&[GANGS, gangs.len() as u64]);
    for (job, nodes, ring) in gangs {
        out.numbers(&[job.into(), nodes.len() as u64]);
        for &(node, gpus) in nodes {
            out.numbers(&[node.into(), gpus.0]);
        }
        out.number(ring.into());
    }
    out.fits.then_some(out.at)
}

struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
    fits: bool,
}

impl Out<'_> {
    fn byte(&mut self, byte: u8) {
        match self.bytes.get_mut(self.at) {
            Some(place) => *place = byte,
            None => self.fits = false,
        }
        self.at += 1;
    }

    /// A whole number, a boolean or the number of a variant: seven bits in each byte, the lowest first.
    #[inline(never)]
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    #[inline(never)]
    fn numbers(&mut self, values: &[u64]) {
        values.iter().for_each(|value| self.number(*value));
    }

    /// What is rare, or has text in it.
    #[cold]
    #[inline(never)]
    fn by_serde(&mut self, value: &impl Serialize) {
        let rest = self.bytes.get_mut(self.at..).unwrap_or_default();
        match postcard::to_slice(value, rest) {
            Ok(written) => self.at += written.len(),
            Err(_) => self.fits = false,
        }
    }

    fn state(&mut self, state: &NodeState) {
        // Named one by one: a new field does not compile before it is written.
        let NodeState {
            candidate,
            present,
            free,
            free_cpus,
            free_memory_mib,
            affinity,
            penalty,
            until,
        } = *state;
        self.numbers(&[
            candidate.into(),
            present.0,
            free.0,
            free_cpus.into(),
            free_memory_mib,
            affinity.into(),
            penalty.into(),
            until.into(),
        ]);
    }

    fn asked(&mut self, asked: &Asked<'_>) {
        let Asked {
            job,
            purpose,
            skip,
            by,
            request,
            answer,
            at,
        } = asked;
        let purpose = match purpose {
            Purpose::Start => 0,
            Purpose::Forecast => 1,
        };
        self.numbers(&[(*job).into(), purpose, (*skip).into()]);
        match *by {
            By::Order => self.number(0),
            By::Network(None) => self.numbers(&[1, 0]),
            By::Network(Some(beside)) => self.numbers(&[1, 1, beside.into()]),
            By::Future => self.number(2),
        }
        self.request(request);
        match answer {
            Ok(choice) => {
                let crate::plan::Choice {
                    nodes,
                    reached,
                    domain,
                    bus_gbps,
                    usability_lost,
                    feasible_nodes,
                    feasible_domains,
                    decided,
                } = &**choice;
                self.numbers(&[0, nodes.len() as u64]);
                for one in nodes {
                    self.numbers(&[one.node.into(), one.gpus.0]);
                }
                self.number((*reached).into());
                self.option(*domain);
                for figure in [bus_gbps, usability_lost] {
                    figure
                        .to_le_bytes()
                        .iter()
                        .for_each(|byte| self.byte(*byte));
                }
                let (nodes, domains) = (*feasible_nodes, *feasible_domains);
                self.numbers(&[nodes.into(), domains.into(), *decided as u64]);
            }
            Err(why) => {
                self.number(1);
                self.by_serde(&**why);
            }
        }
        self.number(*at);
    }

    fn option(&mut self, value: Option<u32>) {
        match value {
            None => self.number(0),
            Some(value) => self.numbers(&[1, value.into()]),
        }
    }

    fn request(&mut self, request: &Request) {
        let Request {
            min_nodes,
            max_nodes,
            gpus,
            cpus_per_node,
            cpus_per_gpu,
            memory_mib_per_node,
            whole_nodes,
            required_nodes,
            topology,
            placement,
            cost_first,
            until,
        } = request;
        self.numbers(&[(*min_nodes).into(), (*max_nodes).into()]);
        match *gpus {
            GpuShape::PerNode(gpus) => self.numbers(&[0, gpus.into()]),
            GpuShape::Total(gpus) => self.numbers(&[1, gpus.into()]),
            GpuShape::PerTask { per_task, tasks } => {
                self.numbers(&[2, per_task.into(), tasks.into()]);
            }
            GpuShape::PerSocket {
                per_socket,
                sockets,
            } => self.numbers(&[3, per_socket.into(), sockets.into()]),
        }
        self.numbers(&[
            (*cpus_per_node).into(),
            (*cpus_per_gpu).into(),
            *memory_mib_per_node,
            (*whole_nodes).into(),
            required_nodes.len() as u64,
        ]);
        for node in required_nodes {
            self.number((*node).into());
        }
        match topology {
            None => self.number(0),
            some => self.by_serde(some),
        }
        match placement {
            Placement::Default => self.number(0),
            named => self.by_serde(named),
        }
        self.numbers(&[(*cost_first).into(), (*until).into()]);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::plan::{Choice, Criterion, Never, NodeChoice, TopologyRequest, Wait};
    use crate::record::{Gang, Outcome};

    /// The same bytes as serde makes, and none where there is too little room.
    fn same(event: &Event<'_>) {
        let expected = postcard::to_allocvec(event).expect("an event in postcard's form");
        let mut bytes = vec![0; expected.len()];
        assert_eq!(encode(event, &mut bytes), Some(expected.len()), "{event:?}");
        assert_eq!(bytes, expected, "{event:?}");
        for short in 0..expected.len() {
            assert_eq!(encode(event, &mut bytes[..short]), None, "{event:?}");
        }
    }

    #[test]
    fn bytes_are_those_of_serde() {
        let big = NodeState {
            candidate: true,
            present: GpuSet(u64::MAX),
            free: GpuSet(1 << 63),
            free_cpus: u32::MAX,
            free_memory_mib: u64::MAX,
            affinity: u16::MAX,
            penalty: 0x1234,
            until: 1 << 21,
        };
        for state in [NodeState::default(), big] {
            let (from, count) = (127, 128);
            same(&Event::Nodes { from, count, state });
        }
        for yes in [false, true] {
            let (from, count) = (0, u32::MAX);
            same(&Event::Offered { from, count, yes });
        }
        for outcome in [Outcome::Taken, Outcome::Left, Outcome::Waits] {
            same(&Event::Ended { job: 300, outcome });
        }
        same(&Event::Network { whole: true });
        same(&Event::GangEnded { job: 7 });
    }

    #[test]
    fn gangs_are_those_of_serde() {
        let members = [
            (0, GpuSet(1)),
            (200, GpuSet(0xff)),
            (40_000, GpuSet(u64::MAX)),
        ];
        let all = [(7, &members[..1], 2500), (u32::MAX, &members[..], 0)];
        for count in 0..=all.len() {
            let gangs = all[..count].iter().map(|&(job, nodes, ring)| Gang {
                job,
                nodes: Cow::Borrowed(nodes),
                ring,
            });
            let event = Event::Gangs(gangs.collect());
            let expected = postcard::to_allocvec(&event).expect("an event in postcard's form");
            let mut bytes = vec![0; expected.len()];
            let gangs = || all[..count].iter().copied();
            assert_eq!(encode_gangs(gangs(), &mut bytes), Some(expected.len()));
            assert_eq!(bytes, expected);
            assert_eq!(encode_gangs(gangs(), &mut bytes[1..]), None);
        }
    }

    #[test]
    fn questions_are_those_of_serde() {
        let wish = TopologyRequest {
            level: "leaf".into(),
            required: true,
        };
        let names = vec!["a".to_string(), "user:b".into()];
        let placements = [
            Placement::Default,
            Placement::BestFit,
            Placement::Frag,
            Placement::FirstFit,
            Placement::Backfill,
            Placement::Pack,
            Placement::Spread,
            Placement::Affinity(names.clone()),
            Placement::AntiAffinity(names),
        ];
        let shapes = [
            GpuShape::PerNode(8),
            GpuShape::Total(300),
            GpuShape::PerTask {
                per_task: 2,
                tasks: 1 << 20,
            },
            GpuShape::PerSocket {
                per_socket: 4,
                sockets: 300,
            },
        ];
        let node = |node| NodeChoice {
            node,
            gpus: GpuSet(0xf0 << node),
        };
        let choices = [
            Choice::default(),
            Choice {
                nodes: vec![node(0), node(9)],
                reached: 3,
                domain: Some(200),
                bus_gbps: 437.5,
                usability_lost: -0.1,
                feasible_nodes: 1250,
                feasible_domains: 2,
                decided: Criterion::Cost,
            },
        ];
        let waits = [
            Wait::Capacity {
                feasible_nodes: 1,
                needed_nodes: 2,
                free_gpus: 1000,
                needed_gpus: 2000,
            },
            Wait::Never {
                why: Never::Named {
                    named: 9,
                    most: 300,
                },
            },
        ];
        let answers = choices.iter().map(|one| Ok(Cow::Borrowed(one)));
        let answers: Vec<_> = answers
            .chain(waits.iter().map(|one| Err(Cow::Borrowed(one))))
            .collect();
        let ways = [
            By::Order,
            By::Network(None),
            By::Network(Some(12_345)),
            By::Future,
        ];
        for (n, answer) in answers.iter().cycle().take(40).enumerate() {
            let request = Request {
                cpus_per_node: n as u32 * 50,
                cpus_per_gpu: 14,
                memory_mib_per_node: (n as u64) << (n % 60),
                whole_nodes: n % 2 == 1,
                required_nodes: (0..n as u32 % 5).map(|node| node * 100).collect(),
                topology: (n % 3 == 1).then(|| wish.clone()),
                placement: placements[n % placements.len()].clone(),
                cost_first: n % 7 == 1,
                until: n as u32 * 1000,
                ..Request::new(1, n as u32, shapes[n % shapes.len()])
            };
            same(&Event::Asked(Asked {
                job: 100 + 100 * n as u32,
                purpose: [Purpose::Start, Purpose::Forecast][n % 2],
                skip: n as u32,
                by: ways[n % ways.len()],
                request: Cow::Borrowed(&request),
                answer: answer.clone(),
                at: 1_790_000_000,
            }));
        }
    }
}
