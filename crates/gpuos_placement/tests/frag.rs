//! The worth of idle GPUs, and the choice of a node by it.

use gpuos_model::rng::Rng;
use gpuos_placement::frag::{
    Chooser, Class, Cluster, Demand, FillValue, Fragmentation, MAX_CLASSES, MAX_DEVICES, MILLI,
    Mix, Node, PRICE_UNIT, Request, Score, Slot, State, Supply, WEIGHT_UNIT, prices,
};
use proptest::prelude::*;

const ANY: u64 = u64::MAX;

fn request(cpu: u32, gpus: u8, share: u16) -> Request {
    Request {
        cpu,
        memory: 1024,
        gpus,
        share,
        models: ANY,
    }
}

fn state(cpu: u32, free: &[u16]) -> State {
    let mut node = Node::idle(cpu, 1 << 20, free.len() as u8, 0);
    node.free[..free.len()].copy_from_slice(free);
    Cluster::new(vec![node]).states()[0]
}

fn mix(classes: &[(Request, u64)]) -> Mix {
    let mut mix = Mix::new();
    for (request, weight) in classes {
        mix.add(request, *weight);
    }
    mix
}

#[test]
fn fragmentation_is_what_typical_jobs_cannot_use() {
    let half = request(4000, 1, 500);
    let pair = request(8000, 2, MILLI);
    let cores = request(1000, 0, 0);
    let of = |classes: &[(Request, u64)], state: &State| {
        Fragmentation::new(&mix(classes)).of(state) * 1000 / WEIGHT_UNIT
    };
    let open = state(16_000, &[300, 700, 1000, 1000]);
    // A half cannot use the 300; a pair cannot use the shared GPUs.
    assert_eq!(of(&[(half, 1)], &open), 300_000);
    assert_eq!(of(&[(pair, 1)], &open), 1_000_000);
    assert_eq!(of(&[(half, 3), (pair, 1)], &open), 475_000);
    // No cores, no second whole GPU, or a job without GPUs: all is unusable.
    assert_eq!(of(&[(half, 1)], &state(3999, &[1000, 1000])), 2_000_000);
    assert_eq!(of(&[(pair, 1)], &state(9000, &[1000, 999])), 1_999_000);
    assert_eq!(of(&[(cores, 1)], &open), 3_000_000);
    let elsewhere = Request { models: 2, ..half };
    assert_eq!(of(&[(elsewhere, 1)], &open), 3_000_000);
}

#[test]
fn the_expected_fill_counts_cores_and_shapes() {
    // Ten cores for each pair: two pairs fit, and four GPUs stay for want of cores.
    let pair = request(10_000, 2, MILLI);
    let value = FillValue::with_fixed_mix(&mix(&[(pair, 1)]));
    assert_eq!(value.expected(&state(25_000, &[1000; 8])), 4000);
    assert_eq!(value.expected(&state(80_000, &[1000; 8])), 8000);
    assert_eq!(value.expected(&state(80_000, &[1000, 999])), 0);
    // Memory and model count as well.
    let mut low = state(80_000, &[1000; 8]);
    low.memory = 3 * 1024;
    assert_eq!(value.expected(&low), 6000);
    let picky = Request { models: 2, ..pair };
    let value = FillValue::with_fixed_mix(&mix(&[(picky, 1)]));
    assert_eq!(value.expected(&state(80_000, &[1000; 8])), 0);
    // Nothing known, nothing expected.
    assert_eq!(FillValue::learning().expected(&low), 0);
}

#[test]
fn what_is_learned_is_what_arrived() {
    let jobs = [
        request(3000, 1, 600),
        request(12_000, 1, MILLI),
        request(30_000, 4, MILLI),
    ];
    let mut learned = FillValue::learning();
    let mut told = Mix::new();
    let cluster = Cluster::new(vec![Node::idle(40_000, 1 << 20, 8, 0)]);
    for round in 0..128 {
        let job = &jobs[round % 3];
        learned.observe(&cluster, job);
        learned.observe(&cluster, &request(5000, 0, 0));
        told.add(job, job.gpus.into());
    }
    let given = FillValue::with_fixed_mix(&told);
    for free in [&[1000u16; 8][..], &[400, 600, 1000, 1000], &[200, 900]] {
        let state = state(40_000, free);
        assert_eq!(learned.expected(&state), given.expected(&state), "{free:?}");
    }
}

#[test]
fn a_mix_is_bounded_and_keeps_what_is_frequent() {
    let mut mix = Mix::new();
    let mut rng = Rng::new(1);
    for _ in 0..20_000 {
        let rare = request(1 + rng.below(1 << 30) as u32, 1, 700);
        mix.add(&rare, 1);
        mix.add(&request(0, 1, 100 + rng.below(5) as u16), 1);
    }
    assert_eq!(mix.classes().len(), MAX_CLASSES);
    assert_eq!(mix.total(), 40_000);
    let frequent = mix.classes().iter().filter(|class| class.request.cpu == 0);
    let weights: Vec<u64> = frequent.map(|class| class.weight).collect();
    assert_eq!(weights.len(), 5);
    assert!(
        weights.iter().all(|weight| (3800..4300).contains(weight)),
        "{weights:?}"
    );
}

#[test]
fn the_typical_mix_is_cut_at_a_part_of_the_jobs() {
    let jobs: Vec<Request> = [(10, 60), (20, 30), (30, 6), (40, 4)]
        .into_iter()
        .flat_map(|(cpu, count)| vec![request(cpu, 1, MILLI); count])
        .collect();
    let class = |cpu, weight| Class {
        request: Request {
            memory: 0,
            ..request(cpu, 1, MILLI)
        },
        weight,
    };
    let known = Mix::typical(&jobs, 95);
    assert_eq!(
        known.classes(),
        [class(10, 60), class(20, 30), class(30, 6)]
    );
    assert_eq!(known.total(), 96);
    assert_eq!(Mix::typical(&jobs, 60).classes(), [class(10, 60)]);
}

/// A job goes where its shape leaves least behind: the node whose cores are nearly gone takes the
/// job that needs few.
#[test]
fn cores_that_others_need_are_spared() {
    let heavy = request(16_000, 1, MILLI);
    let light = request(1000, 1, MILLI);
    let nodes = vec![
        Node::idle(32_000, 1 << 20, 2, 0),
        Node::idle(16_500, 1 << 20, 2, 0),
    ];
    let cluster = Cluster::new(nodes);
    let mut chooser = Chooser::new(FillValue::with_fixed_mix(&mix(&[(heavy, 1), (light, 1)])));
    let choice = chooser.choose(&cluster, &light).map(|choice| choice.node);
    assert_eq!(choice, Some(1));
    assert_eq!(chooser.choose(&cluster, &request(40_000, 1, 10)), None);
}

/// A job that can run anywhere leaves the few nodes of a model that others name, unless those
/// others would leave them idle.
#[test]
fn scarce_models_are_spared() {
    let any = request(1000, 1, MILLI);
    let picky = Request { models: 2, ..any };
    let nodes = |rare| {
        let model = move |n| Node::idle(32_000, 1 << 20, 4, u8::from(n < rare));
        Cluster::new((0..12).map(model).collect())
    };
    let first = |rare, picky_weight| {
        let mix = mix(&[(any, 10), (picky, picky_weight)]);
        let mut chooser = Chooser::new(FillValue::with_fixed_mix(&mix));
        let cluster = nodes(rare);
        chooser
            .choose(&cluster, &any)
            .map(|choice| cluster.nodes()[choice.node].model)
    };
    assert_eq!(
        first(1, 5),
        Some(0),
        "a third of the jobs want one node of twelve"
    );
    assert_eq!(first(1, 0), Some(1), "nobody names a model: the first node");
    assert_eq!(first(12, 5), Some(1), "all nodes are of that model");
}

/// A score without memory, to compare the chooser's kept scores with.
struct Plain;

impl Score for Plain {
    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let slot = state.slots(request).next()?;
        let left = state.after(request, slot);
        Some((-i64::from(left.idle() / 100 * 7 + left.cpu / 3000), slot))
    }
}

fn any_request() -> impl Strategy<Value = Request> {
    let gpus = prop_oneof![
        Just((0u8, 0u16)),
        (1u16..=1000).prop_map(|s| (1, s)),
        (1u8..5).prop_map(|n| (n, 1000))
    ];
    (gpus, 0u32..5, 1u64..4).prop_map(|((gpus, share), cpu, models)| Request {
        cpu: cpu * 3000,
        memory: 100,
        gpus,
        share,
        models,
    })
}

proptest! {
    #[test]
    fn starting_and_ending_keep_the_books(requests in prop::collection::vec((any_request(), any::<bool>()), 1..200)) {
        let idle: Vec<Node> = (0..6).map(|n| Node::idle(20_000, 2000, 1 + n, n % 2)).collect();
        let mut cluster = Cluster::new(idle.clone());
        let mut chooser = Chooser::new(Plain);
        let mut running = Vec::new();
        for (request, end) in requests {
            if end && let Some((node, request, devices)) = running.pop() {
                cluster.end(node, &request, devices);
            }
            // The first of the nodes with the highest score, scored anew.
            let scores: Vec<_> = cluster.states().iter().map(|state| {
                state.fits(&request).then(|| Plain.score(state, &request)).flatten()
            }).collect();
            let best = scores.iter().flatten().map(|score| score.0).max();
            let first = scores.iter().position(|score| score.is_some() && score.map(|s| s.0) == best);
            let choice = chooser.choose(&cluster, &request);
            prop_assert_eq!(choice.map(|choice| choice.node), first);
            let Some(choice) = choice else { continue };
            let expected = cluster.states()[choice.node].after(&request, choice.slot);
            let devices = cluster.start(choice.node, &request, choice.slot);
            prop_assert_eq!(devices.count_ones(), u32::from(request.gpus));
            prop_assert_eq!(cluster.states()[choice.node], expected);
            running.push((choice.node, request, devices));
        }
        for (node, request, devices) in running {
            cluster.end(node, &request, devices);
        }
        let again = Cluster::new(idle);
        prop_assert_eq!(cluster.nodes(), again.nodes());
    }

    #[test]
    fn the_fill_is_at_most_what_is_idle(free in prop::collection::vec(0u16..=1000, 1..=MAX_DEVICES), cpu in 0u32..90_000) {
        let known = mix(&[(request(4000, 1, 300), 5), (request(9000, 1, MILLI), 5), (request(20_000, 4, MILLI), 4)]);
        let state = state(cpu, &free);
        prop_assert!(FillValue::with_fixed_mix(&known).expected(&state) <= state.idle());
    }

    #[test]
    fn prices_rise_as_what_others_lean_on_runs_out(
        weights in prop::collection::vec((1u64..60_000, 1u64..16), 1..12),
        supply in prop::collection::vec((0u64..500, 1u64..500), 4),
    ) {
        let supply: Vec<Supply> = supply.iter().map(|&(idle, more)| Supply { idle, all: idle + more }).collect();
        let sum = |supply: &[Supply], kinds: u64| {
            let mine = supply.iter().enumerate().filter(|(kind, _)| kinds >> kind & 1 == 1);
            mine.fold(Supply::default(), |sum, (_, s)| Supply { idle: sum.idle + s.idle, all: sum.all + s.all })
        };
        let of = |supply: &[Supply]| {
            let demands = weights.iter().map(|&(weight, kinds)| Demand { weight, kinds, supply: sum(supply, kinds) });
            prices(4, sum(supply, 15), demands)
        };
        let before = of(&supply);
        prop_assert!(before[..4].contains(&0), "{:?}", &before[..4]);
        prop_assert!(before.iter().all(|&price| u64::from(price) <= 3 * PRICE_UNIT));
        // Classes that run anywhere make no difference.
        let everywhere = weights.iter().all(|&(_, kinds)| kinds == 15);
        prop_assert!(!everywhere || before == [0; 64]);
    }

    #[test]
    fn the_model_that_is_named_has_the_price(named in 1u64..30_000, idle in 1u64..400, fewer in 0u64..400) {
        let price = |idle: u64| {
            let (rare, rest) = (Supply { idle, all: 500 }, Supply { idle: 400, all: 500 });
            let whole = Supply { idle: rare.idle + rest.idle, all: 1000 };
            let any = Demand { weight: 30_000, kinds: 3, supply: whole };
            let named = Demand { weight: named, kinds: 1, supply: rare };
            let prices = prices(2, whole, [any, named].into_iter());
            (prices[0], prices[1])
        };
        let (rare, rest) = price(idle);
        prop_assert_eq!(rest, 0);
        let (rarer, _) = price(idle.saturating_sub(fewer));
        prop_assert!(rarer >= rare, "{} {}", rarer, rare);
    }
}
