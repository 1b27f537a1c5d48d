//! What is withheld from a job, held against what a site cares about.

use gpuos_model::gpuset::GpuSet;
use gpuos_placement::withhold::out::{Blame, Job, NodeState, Withhold, name_the_sound};
use gpuos_placement::withhold::registration::{Known, Readiness, SavedTopology};
use proptest::prelude::*;

fn state() -> impl Strategy<Value = NodeState> {
    let out = prop_oneof![2 => Just(0u64), 2 => 0u64..256, 1 => Just(u64::MAX)];
    (0usize..9, 0u64..256, out, prop::bool::weighted(0.2)).prop_map(
        |(devices, given, out, is_pool_out)| NodeState {
            devices,
            allocated: GpuSet(given).and(GpuSet::first(devices)),
            out: GpuSet(out),
            is_pool_out,
        },
    )
}

fn job() -> impl Strategy<Value = Job> {
    (prop::bool::weighted(0.3), 1u64..4, 1u64..5, 0u64..12).prop_map(
        |(whole_nodes, nodes, each, sum)| Job {
            whole_nodes,
            nodes,
            each,
            sum,
        },
    )
}

/// GPUs of a node that a job can have now, said GPU by GPU: none of a node that would give it one that is out.
fn could_have(job: &Job, node: &NodeState, ever: bool, all_sound: bool) -> u64 {
    let out = |gpu: usize| !all_sound && node.out.contains(gpu);
    let any_out = (0..node.devices).any(out);
    if job.whole_nodes && any_out {
        return 0;
    }
    let free = |gpu: &usize| (ever || !node.allocated.contains(*gpu)) && !out(*gpu);
    (0..node.devices).filter(free).count() as u64
}

fn has_room(job: &Job, nodes: &[NodeState], ever: bool, all_sound: bool) -> bool {
    let have = |node: &NodeState| could_have(job, node, ever, all_sound);
    let enough: Vec<u64> = nodes
        .iter()
        .map(have)
        .filter(|gpus| *gpus >= job.each)
        .collect();
    enough.len() as u64 >= job.nodes && enough.iter().sum::<u64>() >= job.sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nobody_is_given_a_gpu_that_is_out_and_everybody_all_others(job in job(), node in state()) {
        let any_out = (0..node.devices).any(|gpu| node.out.contains(gpu));
        match job.withhold(&node) {
            Withhold::Nothing => {
                prop_assert!(!(any_out || job.whole_nodes && node.is_pool_out));
            }
            Withhold::Node => {
                prop_assert!(job.whole_nodes && (any_out || node.is_pool_out));
            }
            Withhold::Gpus { out, held, too_few } => {
                prop_assert!(!job.whole_nodes);
                let sound = (0..node.devices).filter(|gpu| !out.contains(*gpu)).count() as u64;
                for gpu in 0..64 {
                    let is_out = gpu < node.devices && node.out.contains(gpu);
                    prop_assert_eq!(out.contains(gpu), is_out, "GPU {}", gpu);
                }
                let is_held = (0..node.devices).any(|gpu| out.contains(gpu) && node.allocated.contains(gpu));
                prop_assert_eq!(held, is_held);
                prop_assert_eq!(too_few, held && sound < job.each);
            }
        }
        prop_assert_eq!(job.withhold(&node), job.withhold(&node));
    }

    #[test]
    fn gpus_out_of_service_are_blamed_where_they_are_to_blame(
        job in job(),
        nodes in prop::collection::vec(state(), 1..6),
    ) {
        let names: Vec<String> = (0..nodes.len()).map(|at| format!("n{at}")).collect();
        let mut blame = Blame::new(job);
        for (name, node) in names.iter().zip(&nodes) {
            blame.add(name, node);
        }
        let cost = |ever: bool| has_room(&job, &nodes, ever, true) && !has_room(&job, &nodes, ever, false);
        let said = blame.sentence();
        prop_assert_eq!(said.is_some(), cost(false) || cost(true), "{:?}", said);
        if let Some(said) = said {
            let out = |node: &NodeState| (0..node.devices).filter(|gpu| node.out.contains(*gpu)).count();
            let count: usize = nodes.iter().map(out).sum();
            prop_assert!(count > 0 && said.starts_with(&format!("{count} of ")), "{}", said);
            for (name, node) in names.iter().zip(&nodes).filter(|(_, node)| out(node) > 0).take(4) {
                let first = (0..node.devices).find(|gpu| node.out.contains(*gpu));
                let named = format!("{name} gpu{}", first.expect("one is out"));
                prop_assert!(said.contains(&named), "{}", said);
            }
        }
    }

    #[test]
    fn names_are_those_of_sound_gpus(devices in 0usize..65, given in any::<u64>(), count in 0usize..70) {
        let given = GpuSet(given);
        let named = name_the_sound(devices, given, count);
        let free = (0..devices).filter(|gpu| !given.contains(*gpu));
        let expected: Vec<usize> = free.take(count).collect();
        prop_assert_eq!(named.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_forecast_counts_on_what_is_held_where_the_rest_is_too_little(
        job in job(),
        nodes in prop::collection::vec((0u64..6, any::<bool>()), 0..6),
    ) {
        let counts = job.counts_on_held(nodes.iter().copied());
        let all: u64 = nodes.iter().map(|node| node.0).sum();
        let held: Vec<u64> = nodes.iter().filter(|node| node.1).map(|node| node.0).collect();
        let short = held.iter().any(|free| *free < job.each) || all < job.sum;
        prop_assert_eq!(counts, !held.is_empty() && short);
    }
}

/// Every fact that there can be, in every release.
#[test]
fn a_job_waits_where_its_record_would_lack_its_gpus() {
    use SavedTopology::{Ignored, Lost, Used, UsedOnceItAnswers};
    for bits in 0..32u8 {
        let is = |bit: u8| bits >> bit & 1 == 1;
        let known = Known {
            provisional: is(0),
            has_topology: is(1),
            has_types: is(2),
            out_of_touch: is(3),
            power_saved: is(4),
        };
        for release in [Used, UsedOnceItAnswers, Lost, Ignored] {
            // What cons_tres goes by when it chooses devices.
            let topology = known.has_topology
                && match release {
                    Used => true,
                    UsedOnceItAnswers => !known.out_of_touch,
                    Lost | Ignored => false,
                };
            // 22.05 makes itself a topology of a type-less node at its first job; later ones count.
            let counts = !known.has_types && !known.has_topology;
            let lost_topology = release == Lost && known.has_topology;
            let gets = topology || counts || lost_topology || release == Used;
            let waits = known.provisional && !known.power_saved && !gets;
            let look = release.readiness(known);
            assert_eq!(look == Readiness::Waits, waits, "{release:?} {known:?}");
            assert_eq!(release.loses(known), waits, "{release:?} {known:?}");
            // What was looked at once for all does not change by itself.
            if look == Readiness::ForGood {
                assert!(
                    !known.provisional || known.power_saved,
                    "{release:?} {known:?}"
                );
            }
            if look == Readiness::Now {
                assert!(known.provisional, "{release:?} {known:?}");
            }
        }
    }
}
