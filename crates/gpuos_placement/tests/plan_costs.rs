//! What nodes are worth to a job decides between node types, as objectives and profile say.

use std::sync::Arc;

use gpuos_model::cluster::{Cluster, NodeType};
use gpuos_model::figures::Precision;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::node_types;
use gpuos_placement::cost::{
    Condition, Grant, Model, Objectives, Place, Profile, Scoring, Workload, percent_better, steps,
};
use gpuos_placement::plan::{Choice, Criterion, GpuShape, NodeState, Planner, Request};
use proptest::prelude::*;

use crate::plan_support::{cluster, idle, request};

const THROUGHPUT: [i64; 5] = [100, 0, 0, 0, 0];
const ENERGY: [i64; 5] = [0, 0, 100, 0, 0];
const COST: [i64; 5] = [0, 0, 0, 100, 0];

fn weights(weights: [i64; 5]) -> Option<Objectives> {
    Some(Objectives::new(weights).unwrap())
}

fn wish(of: [i64; 5], profile: Option<Profile>) -> Option<Scoring> {
    Scoring::of(weights(of), profile, None, None)
}

/// Two nodes of each kind: A100 in n0 and n1, L40S in n2 and n3, H100 in n4 and n5.
fn mixed(prices: [u32; 3]) -> Cluster {
    let kinds = ["dgx-a100", "l40s-8", "dgx-h100"].map(|name| node_types::by_name(name).unwrap());
    let mut types = Vec::new();
    for (mut kind, price) in kinds.into_iter().zip(prices) {
        kind.figures.price_milli = price;
        let kind = Arc::new(kind);
        types.extend([kind.clone(), kind]);
    }
    cluster(&types, &[("leaf", vec![0, 0, 1, 1, 2, 2])])
}

fn planned(
    planner: &mut Planner,
    states: &[NodeState],
    asked: &Request,
    wish: Option<&Scoring>,
) -> Choice {
    let (mut states, mut asked) = (states.to_vec(), asked.clone());
    planner.weigh(wish, &[], &mut asked, &mut states);
    planner.plan(&states, &asked, 0).unwrap().clone()
}

fn nodes(choice: &Choice) -> Vec<u32> {
    choice.nodes.iter().map(|node| node.node).collect()
}

#[test]
fn objectives_and_profile_choose_the_node_type() {
    let cluster = mixed([2_000, 500, 4_000]);
    let states = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let one = request(1, GpuShape::PerNode(1));
    let four = request(1, GpuShape::PerNode(4));
    let mut on = |asked: &Request, of, profile| {
        let choice = planned(&mut planner, &states, asked, wish(of, profile).as_ref());
        choice.nodes[0].node / 2
    };
    // Work in a time: the fast type.
    assert_eq!(on(&one, THROUGHPUT, None), 2);
    assert_eq!(on(&four, THROUGHPUT, Some(Profile::Compute)), 2);
    assert_eq!(on(&four, THROUGHPUT, Some(Profile::Communication)), 2);
    // 724 TFLOPS for a unit of price on L40S, 247 on H100 and 156 on A100.
    assert_eq!(on(&one, COST, Some(Profile::Compute)), 1);
    assert_eq!(on(&four, COST, Some(Profile::Compute)), 1);
    // What waits for files runs on what takes least.
    assert_eq!(on(&four, ENERGY, Some(Profile::Io)), 1);
    // Between GPUs L40S has only PCIe, so that cheap is not cheap for the work.
    assert_ne!(on(&four, COST, Some(Profile::Communication)), 1);
}

#[test]
fn without_wish_nothing_changes_and_one_type_costs_nothing() {
    let cluster = mixed([0; 3]);
    let states = idle(&cluster);
    let mut planner = Planner::new(cluster.clone());
    let asked = request(1, GpuShape::PerNode(1));
    let mut weighed = (states.clone(), asked.clone());
    assert_eq!(Scoring::of(None, None, None, Some(900)), None);
    planner.weigh(None, &[], &mut weighed.1, &mut weighed.0);
    assert_eq!(weighed, (states.clone(), asked.clone()));
    // Candidates of one type only: the same.
    let mut some = states.clone();
    some.iter_mut().skip(2).for_each(|s| s.candidate = false);
    let before = some.clone();
    planner.weigh(wish(COST, None).as_ref(), &[], &mut weighed.1, &mut some);
    assert_eq!((some, weighed.1), (before, asked));
}

#[test]
fn closeness_comes_first_and_no_job_waits() {
    let cluster = mixed([2_000, 500, 4_000]);
    let mut planner = Planner::new(cluster.clone());
    let cheap = wish(COST, Some(Profile::Compute));
    let gang = request(2, GpuShape::PerNode(4));
    let choice = planned(&mut planner, &idle(&cluster), &gang, cheap.as_ref());
    assert_eq!(
        (nodes(&choice), choice.decided),
        (vec![2, 3], Criterion::Cost)
    );
    // One cheap node is full: a leaf with both nodes comes before a cheap node and another.
    let mut states = idle(&cluster);
    states[2].free = GpuSet::EMPTY;
    let choice = planned(&mut planner, &states, &gang, cheap.as_ref());
    assert_eq!((choice.reached, nodes(&choice)), (2, vec![4, 5]));
    // Only dear nodes are left: the job starts on them.
    states[3].free = GpuSet::EMPTY;
    for (count, want) in [(1, 1), (2, 2), (4, 4)] {
        let choice = planned(
            &mut planner,
            &states,
            &request(count, GpuShape::PerNode(8)),
            cheap.as_ref(),
        );
        assert_eq!(choice.nodes.len(), want);
    }
}

#[test]
fn a_gang_in_a_mixed_domain_takes_the_cheap_nodes() {
    let mut cluster = mixed([2_000, 500, 4_000]);
    cluster.fabric.levels[0].domain_of = vec![0; 6];
    cluster.fabric.levels[0].domains.truncate(1);
    let mut planner = Planner::new(cluster.clone());
    let gang = request(2, GpuShape::PerNode(4));
    let states = idle(&cluster);
    let choice = planned(
        &mut planner,
        &states,
        &gang,
        wish(COST, Some(Profile::Compute)).as_ref(),
    );
    assert_eq!(nodes(&choice), [2, 3]);
    let choice = planned(
        &mut planner,
        &states,
        &gang,
        wish(THROUGHPUT, None).as_ref(),
    );
    assert_eq!(nodes(&choice), [4, 5]);
    // Four nodes: the two cheap ones and the next cheapest.
    let wide = request(4, GpuShape::PerNode(4));
    let choice = planned(
        &mut planner,
        &states,
        &wide,
        wish(COST, Some(Profile::Compute)).as_ref(),
    );
    assert_eq!(nodes(&choice), [2, 3, 4, 5]);
}

#[test]
fn a_bad_condition_counts_with_and_without_a_wish() {
    let cluster = mixed([0; 3]);
    let mut planner = Planner::new(cluster.clone());
    let mut conditions = vec![Condition::default(); 6];
    conditions[0].health = 500;
    conditions[4].cap_watts = 350;
    let mut asked = request(1, GpuShape::PerNode(1));
    let mut states = idle(&cluster);
    planner.weigh(None, &conditions, &mut asked, &mut states);
    let costs: Vec<u8> = states.iter().map(NodeState::cost).collect();
    assert_eq!((costs[0], costs[1], costs[2], costs[5]), (10, 0, 0, 0));
    assert!(costs[4] > 0 && costs[4] < 10, "{costs:?}");
    assert!(!asked.cost_first);
    // Rules have their own byte.
    let mut states = idle(&cluster);
    states[0].set_rules(3);
    planner.weigh(
        wish(THROUGHPUT, None).as_ref(),
        &conditions,
        &mut asked,
        &mut states,
    );
    assert_eq!(states[0].rules(), 3);
    assert!(states[0].cost() > states[1].cost() && states[4].cost() > states[5].cost());
    assert_eq!(states[5].cost(), 0);
}

#[test]
fn steps_are_coarse_and_percents_bounded() {
    assert_eq!(
        [
            steps(100, 100),
            steps(100, 96),
            steps(100, 95),
            steps(100, 0)
        ],
        [0, 0, 1, 20]
    );
    assert_eq!([steps(0, 0), steps(1, 2)], [0, 0]);
    assert_eq!(
        [
            percent_better(131, 100),
            percent_better(1, 0),
            percent_better(1, 2)
        ],
        [31, 999, 0]
    );
}

fn kind(name: &str, figures: [u32; 5]) -> NodeType {
    let mut kind = node_types::by_name("dgx-a100").unwrap();
    let [rate, memory, watts, node, price] = figures;
    kind.name = name.into();
    kind.figures.tflops = [0, 0, rate, 0, 0];
    kind.figures.memory_gbps = memory;
    (kind.figures.gpu_watts, kind.figures.node_watts) = (watts, node);
    kind.figures.price_milli = price;
    kind
}

fn any_kind(name: &'static str) -> impl Strategy<Value = NodeType> {
    let figures = [
        100..20_000u32,
        100..9_000,
        100..1_500,
        500..20_000,
        100..50_000,
    ];
    figures.prop_map(move |figures| kind(name, figures))
}

fn any_wish() -> impl Strategy<Value = Scoring> {
    let profile = prop::option::of(prop::sample::select(
        Profile::ALL.map(|(_, profile)| profile).to_vec(),
    ));
    let weights = [0..100i64, 0..100, 0..100, 0..100, 0..100].prop_map(|w| {
        let sum: i64 = w.iter().sum::<i64>().max(1);
        let mut w = w.map(|weight| weight * 100 / sum);
        w[0] += 100 - w.iter().sum::<i64>();
        w
    });
    (weights, profile).prop_map(|(weights, profile)| Scoring {
        over_share: 0,
        ..wish(weights, profile).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// A type that is at least as good at everything never ranks below.
    #[test]
    fn what_is_as_good_in_all_never_ranks_below(
        one in any_kind("one"),
        better in [0..500u32, 0..500, 0..90, 0..400, 0..90],
        wish in any_wish(),
        gpus in 1u32..9,
    ) {
        let mut two = one.clone();
        two.name = "two".into();
        let figures = &mut two.figures;
        figures.tflops[2] += better[0];
        figures.memory_gbps += better[1];
        figures.gpu_watts -= better[2];
        figures.node_watts = figures.node_watts.saturating_sub(better[2] * 8 + better[3]).max(1);
        figures.price_milli -= better[4];
        // What a node takes beside its GPUs may not grow.
        prop_assume!(figures.watts(1, 8) <= one.figures.watts(1, 8));
        let cluster = cluster(&[Arc::new(one), Arc::new(two)], &[]);
        let mut planner = Planner::new(cluster.clone());
        let mut states = idle(&cluster);
        let mut asked = request(1, GpuShape::PerNode(gpus));
        planner.weigh(Some(&wish), &[], &mut asked, &mut states);
        prop_assert!(states[1].cost() <= states[0].cost(), "{states:?}");
        prop_assert_eq!(states[0].cost().min(states[1].cost()), 0);
    }

    /// The steps are relative: scores that all grow alike give the same penalties, so the scale of the
    /// weights does not matter.
    #[test]
    fn scaling_changes_no_step(best in 1u32..100_000, part in 0u32..=100, by in 1u32..1000) {
        let own = best / 100 * part;
        prop_assert_eq!(steps(best, own), steps(best * by, own * by));
    }

    /// The same place scores the same whatever else there is of lesser types, and never over the whole.
    #[test]
    fn scores_are_bounded(
        kinds in prop::collection::vec(any_kind("k"), 1..5),
        wish in any_wish(),
        outside in 0u32..=1000,
    ) {
        let model = Model::new(&kinds, Precision::Bf16, 30_000);
        for kind in &kinds {
            let place = Place {
                node_type: kind,
                gpus: 8,
                nodes: 1,
                nvlink: true,
                bus: 20_000,
                outside,
                condition: Condition::default(),
            };
            let score = model.score(&place, &wish.workload, &wish.objectives, 0);
            prop_assert!(score.total <= 100_000 && model.by_memory(&place) <= 100_000);
            prop_assert_eq!(score.total, score.parts.iter().map(|p| p.value * p.weight).sum::<u32>());
        }
    }
}

/// A grant of MiB for each GPU.
fn grant(mib: u64) -> Grant {
    Grant {
        mib,
        reserve_mib: 1024,
    }
}

#[test]
fn a_job_with_more_memory_than_a_gpu_goes_where_least_of_it_is_outside() {
    // A100 with 80 GB in n0 and n1, L40S with 48 in n2 and n3, H100 with 80 in n4 and n5: the latter two over PCIe 4.0, 4.0 and 5.0.
    let cluster = mixed([0; 3]);
    let states = idle(&cluster);
    let mut planner = Planner::new(cluster);
    let asked = request(1, GpuShape::PerNode(1));
    let mut first = |mib, wish: Option<Scoring>, taken: &[usize]| {
        let mut states = states.clone();
        taken
            .iter()
            .for_each(|&node| states[node].free = GpuSet::EMPTY);
        let wish = Scoring::with_memory(wish, grant(mib));
        nodes(&planned(&mut planner, &states, &asked, wish.as_ref()))[0] / 2
    };
    // What all have room for tells none apart: the first of all is taken.
    assert_eq!(first(40 << 10, None, &[]), 0);
    // 60 GiB: n2 and n3 would have some of it outside, and get it only when the others are taken.
    assert_eq!(first(60 << 10, None, &[]), 0);
    assert_eq!(first(60 << 10, None, &[0, 1]), 2);
    assert_eq!(first(60 << 10, None, &[0, 1, 4, 5]), 1);
    // 120 GiB: of all some is outside, and H100 has the fastest link to it.
    assert_eq!(first(120 << 10, None, &[]), 2);
    assert_eq!(first(120 << 10, None, &[4, 5]), 0);
    // Beside a wish it counts as far as the job's time goes with memory.
    let speed = |profile| wish(THROUGHPUT, Some(profile));
    assert_eq!(first(60 << 10, speed(Profile::Memory), &[4, 5]), 0);
    assert_eq!(first(60 << 10, speed(Profile::Compute), &[4, 5]), 0);
}

#[test]
fn a_grant_that_a_gpu_has_room_for_is_none() {
    let kind = node_types::by_name("dgx-h100").unwrap();
    let own = kind.gpu_memory_mib - 1024;
    assert_eq!(Grant::default().outside(&kind), 0);
    assert_eq!(grant(own).outside(&kind), 0);
    assert_eq!(grant(own + 1).outside(&kind), 1);
    assert_eq!(grant(own * 2).outside(&kind), 500);
    let unknown = NodeType {
        gpu_memory_mib: 0,
        ..kind
    };
    assert_eq!(grant(u64::from(u32::MAX)).outside(&unknown), 0);
    // Without a grant a wish stays what it was.
    assert_eq!(Scoring::with_memory(None, Grant::default()), None);
    let told = wish(COST, None);
    assert_eq!(Scoring::with_memory(told, Grant::default()), told);
}

#[test]
fn what_counts_first_follows_objectives_and_workload() {
    let first = |of, profile| wish(of, profile).unwrap().counts_first(8);
    assert!(!first(THROUGHPUT, None) && !first(THROUGHPUT, Some(Profile::Communication)));
    assert!(first(THROUGHPUT, Some(Profile::Io)) && first(THROUGHPUT, Some(Profile::Memory)));
    assert!(first(ENERGY, None) && first([90, 0, 0, 10, 0], Some(Profile::Communication)));
    assert!(wish(THROUGHPUT, None).unwrap().counts_first(1));
    // What was learned of the job stands in for a profile.
    let learned = Scoring::of(weights(THROUGHPUT), None, None, Some(50)).unwrap();
    assert!(learned.counts_first(8));
    assert_eq!(learned.workload, Workload::default().with_communication(50));
}
