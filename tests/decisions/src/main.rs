//! Fixed decisions whose instructions `scripts/instructions.sh` counts under callgrind.
//!
//! `decisions` lists their names; `decisions NAME` makes that one a few times beforehand and then ten
//! times in [`measured`], the only function that is counted; before each a node changes. `decisions
//! NAME once` makes it once between [`begin`] and [`end`], for `scripts/footprint.sh`, which looks at
//! the memory that it touches. With `plain` as the last word nothing is kept between decisions.

#[path = "../../../crates/gpuos_placement/benches/load/mod.rs"]
mod load;

use std::hint::black_box;

use gpuos_placement::plan::{NodeState, Planner, Request};
use load::{Fill, Random};

/// Name, number of nodes, how full they are, and the name of the request. Where the name ends in `-mix`
/// a mix of jobs was learned; where it ends in `-list` the states of all nodes are given with the request.
const DECISIONS: [(&str, u32, Fill, &str); 16] = [
    ("one-gpu-4-nodes", 4, Fill::Fragmented, "1 GPU"),
    ("one-gpu-idle", 1250, Fill::Percent(0), "1 GPU"),
    ("one-gpu-full", 1250, Fill::Percent(90), "1 GPU"),
    ("four-gpus-fragmented", 1250, Fill::Fragmented, "4 GPUs"),
    ("gang-8-full", 1250, Fill::Percent(90), "8 GPUs, 2 x 4"),
    ("gang-64-idle", 1250, Fill::Percent(0), "64 GPUs, 8 x 8"),
    ("gang-512-half", 1250, Fill::Percent(50), "512 GPUs, 64 x 8"),
    (
        "total-64-fragmented",
        1250,
        Fill::Fragmented,
        "64 GPUs in all",
    ),
    (
        "gang-512-waits",
        1250,
        Fill::Percent(99),
        "512 GPUs, 64 x 8",
    ),
    ("one-gpu-full-12500", 12_500, Fill::Percent(90), "1 GPU"),
    (
        "gang-8-full-12500",
        12_500,
        Fill::Percent(90),
        "8 GPUs, 2 x 4",
    ),
    (
        "gang-512-waits-12500",
        12_500,
        Fill::Percent(99),
        "512 GPUs, 64 x 8",
    ),
    (
        "total-512-full-12500",
        12_500,
        Fill::Percent(99),
        "512 GPUs in all",
    ),
    ("one-gpu-full-mix", 1250, Fill::Percent(90), "1 GPU"),
    ("one-gpu-fragmented-mix", 1250, Fill::Fragmented, "1 GPU"),
    ("one-gpu-full-list", 1250, Fill::Percent(90), "1 GPU"),
];

#[inline(never)]
fn measured(planner: &mut Planner, states: Option<&[NodeState]>, request: &Request) {
    if let Some(states) = states {
        black_box(planner.plan(black_box(states), black_box(request), 0)).ok();
    } else {
        black_box(planner.decide(black_box(request), None, 0)).ok();
    }
}

/// Marks where the memory trace begins.
#[inline(never)]
fn begin() {
    black_box(1);
}

/// Marks where it ends. Not the same code as [`begin`], which would be merged with it.
#[inline(never)]
fn end() {
    black_box(2);
}

fn once(planner: &mut Planner, request: &Request) {
    // Where the program was loaded: the trace has addresses.
    let place: fn() = begin;
    println!("{:x}", place as usize);
    begin();
    black_box(planner.decide(black_box(request), None, 0)).ok();
    end();
}

fn main() {
    let once_only = std::env::args().nth(2).is_some_and(|arg| arg == "once");
    let plain = std::env::args().skip(2).any(|arg| arg == "plain");
    let wanted = std::env::args().nth(1);
    for (name, nodes, fill, request) in DECISIONS {
        let Some(wanted) = &wanted else {
            println!("{name}");
            continue;
        };
        if wanted != name {
            continue;
        }
        let cluster = load::levels(
            load::support::pairs(),
            nodes,
            if nodes > 10_000 { 3 } else { 2 },
        );
        let mut planner = load::planner(cluster, fill, &mut Random(42));
        if name.ends_with("-mix") {
            load::learn(&mut planner);
        }
        if plain {
            planner.keep_ranks(false);
        }
        let mut random = Random(5);
        for (named, request) in load::requests().iter().filter(|r| r.0 == request) {
            for _ in 0..3 {
                load::event(&mut planner, fill, &mut random);
                black_box(planner.decide(request, None, 0)).ok();
            }
            for _ in 0..if once_only { 1 } else { 10 } {
                load::event(&mut planner, fill, &mut random);
                match once_only {
                    true => once(&mut planner, request),
                    false => {
                        let state = |node| planner.state(node).copied().unwrap_or_default();
                        let states: Vec<_> = (0..nodes).map(state).collect();
                        let states = name.ends_with("-list").then_some(states.as_slice());
                        measured(&mut planner, states, request);
                    }
                }
            }
            eprintln!("{name}: {named}");
        }
    }
}
