//! MIG-switchable GPUs: random nodes and jobs, held against what a site cares about, as it can be said of one GPU alone.

use gpuos_model::gpu_index::{GresGpu, NvmlIndex, PoolGpu};
use gpuos_model::gpuset::GpuSet;
use gpuos_placement::switching::{
    Allocated, Asks, Candidate, Forecast, GpuMode, GresState, Job, Mark, Marks, Node, NodeState,
    Reading, Wait, Why,
};
use proptest::prelude::*;

const NOW: i64 = 1_000_000;
const MODES: [GpuMode; 2] = [GpuMode::Whole, GpuMode::Slices];

/// The GPUs of a node by what NVML has: `fixed` GPUs before them are divided for good, and in no GRES `gpu`.
fn node(index: usize, gpus: usize, fixed: usize, each: u8) -> Node {
    let mut node = Node::new(
        index,
        &format!("n{index}"),
        (gpus + fixed) * usize::from(each),
    );
    for gpu in 0..gpus {
        node.add(
            NvmlIndex::new(fixed + gpu).expect("a GPU"),
            GresGpu::new(gpu).expect("a GPU"),
            PoolGpu::new(fixed + gpu).expect("a GPU"),
            each,
            &[],
        );
    }
    node
}

/// A node with its memory of how GPUs served, what is given there, and what is out of service.
#[derive(Clone, Debug)]
struct Case {
    node: Node,
    given: Allocated,
    out: GpuSet,
    job: Job,
}

fn gpu_held() -> impl Strategy<Value = u8> {
    // Nobody, whole, shared, some slices, a job that took the whole node, shared and sliced: nobody's doing, but it is read.
    prop_oneof![3 => Just(0u8), 1 => Just(1), 1 => Just(2), 2 => Just(3), 1 => Just(4), 1 => Just(5)]
}

fn asks() -> impl Strategy<Value = Asks> {
    prop_oneof![
        Just((true, false)),
        Just((false, true)),
        Just((true, true)),
        Just((false, false))
    ]
    .prop_map(|(whole, slices)| Asks { whole, slices })
}

fn case() -> impl Strategy<Value = Case> {
    let gpus = prop::collection::vec((gpu_held(), 1u64..256, any::<bool>(), 0i64..3), 1..7);
    let job = (asks(), any::<bool>(), any::<bool>(), -50i64..50, 0i64..100);
    (gpus, 0usize..2, 4u8..9, job, any::<u8>()).prop_map(|(gpus, fixed, each, job, out)| {
        let mut node = node(3, gpus.len(), fixed, each);
        let mut given = Allocated::default();
        for (at, (held, bits, served, since)) in gpus.into_iter().enumerate() {
            let gpu = &mut node.gpus[at];
            gpu.mode = MODES[usize::from(served)];
            gpu.since = since * (NOW / 2);
            let lowest = gpu.slices & gpu.slices.wrapping_neg();
            let some = ((bits * lowest) & gpu.slices) | lowest;
            let (whole, shared, slices) = match held {
                0 => (false, false, 0),
                1 => (true, false, 0),
                2 => (false, true, 0),
                3 => (false, false, some),
                4 => (true, false, gpu.slices),
                _ => (false, true, some),
            };
            given.gpus |= u64::from(whole) << at;
            given.shared |= u64::from(shared) << at;
            given.slices |= slices;
        }
        let (asks, spares_idle, is_forecast, patient, hold) = job;
        let job = Job {
            asks,
            spares_idle,
            patient_from: NOW + patient,
            hold,
            is_forecast,
            now: NOW,
        };
        Case {
            node,
            given,
            out: GpuSet(u64::from(out)),
            job,
        }
    })
}

/// The decision, carried out as Slurm would: on devices that are free.
fn decide(case: &Case) -> (Node, Marks, Allocated) {
    let (mut node, mut marks) = (case.node.clone(), Marks::default());
    node.mark(case.given, case.out, &case.job, &mut marks);
    let mut now = case.given;
    let mut number = 0;
    marks.carry_out(0, |mark| {
        let all = match mark.mode {
            GpuMode::Whole => &mut now.gpus,
            GpuMode::Slices => &mut now.slices,
        };
        assert_eq!(mark.bits & *all, 0, "what is given is marked: {mark:?}");
        *all |= mark.bits;
        number += 1;
        Some((number - 1, mark.bits))
    });
    (node, marks, now)
}

/// How a GPU serves now, said without the code under test.
fn user(case: &Case, at: usize) -> Option<GpuMode> {
    let whole = (case.given.gpus | case.given.shared) >> at & 1 == 1;
    match (whole, case.node.gpus[at].slices & case.given.slices != 0) {
        (true, _) => Some(GpuMode::Whole),
        (false, true) => Some(GpuMode::Slices),
        (false, false) => None,
    }
}

/// Whether a mark says the truth.
fn is_true(case: &Case, mark: &Mark) -> bool {
    let at = case.node.gpus.iter().position(|gpu| gpu.nvml == mark.nvml);
    let at = at.expect("a GPU of the node");
    let (gpu, job) = (&case.node.gpus[at], &case.job);
    let asks = |mode: GpuMode| match mode {
        GpuMode::Whole => job.asks.whole,
        GpuMode::Slices => job.asks.slices,
    };
    match mark.why {
        Why::Allocated => user(case, at).is_some_and(|user| user != mark.mode),
        Why::Never => {
            let out = case.out.0 >> at & 1 == 1;
            job.asks.slices && (out || job.asks.whole && mark.mode == GpuMode::Whole)
        }
        Why::OtherMode(from) => {
            let late = !job.is_forecast || from > NOW;
            let when = job.patient_from.max(gpu.since + job.hold);
            user(case, at).is_none()
                && gpu.mode != mark.mode
                && asks(mark.mode)
                && job.spares_idle
                && late
                && from == when
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_gpu_is_offered_in_one_mode_only(case in case()) {
        let (_, _, now) = decide(&case);
        for (at, gpu) in case.node.gpus.iter().enumerate() {
            let whole = now.gpus >> at & 1 == 0;
            let slices = gpu.slices & !now.slices != 0;
            match user(&case, at) {
                // Whoever asks: GRES gpu may be asked for by MPS, whose name for it is another.
                Some(GpuMode::Slices) => prop_assert!(!whole, "GPU {at} is sliced and offered whole"),
                Some(GpuMode::Whole) if case.job.asks.slices => {
                    prop_assert!(!slices, "GPU {at} is whole and offered by slices");
                }
                _ => {}
            }
            if case.out.0 >> at & 1 == 1 && case.job.asks.slices {
                prop_assert!(!slices, "GPU {at} is out of service and offered by slices");
            }
            if case.job.asks.whole && case.job.asks.slices {
                prop_assert!(!(whole && slices), "GPU {at} is offered both ways to one job");
            }
        }
    }

    #[test]
    fn what_is_kept_has_a_reason_that_is_true(case in case()) {
        let (_, marks, now) = decide(&case);
        let mut seen = case.given;
        for mark in marks.all() {
            prop_assert!(is_true(&case, mark), "{mark:?}");
            prop_assert!(mark.bits != 0);
            match mark.mode {
                GpuMode::Whole => seen.gpus |= mark.bits,
                GpuMode::Slices => seen.slices |= mark.bits,
            }
        }
        prop_assert_eq!((seen.gpus, seen.slices), (now.gpus, now.slices));
        prop_assert!(marks.all().len() <= 2 * case.node.gpus.len());
    }

    #[test]
    fn what_nobody_else_has_is_not_kept_from_a_job(case in case()) {
        let (_, _, now) = decide(&case);
        let Job { asks, spares_idle, .. } = case.job;
        for (at, gpu) in case.node.gpus.iter().enumerate() {
            let other = user(&case, at).is_some_and(|user| Some(user) != asks.only());
            let spared = spares_idle && Some(gpu.mode) != asks.only();
            let out = case.out.0 >> at & 1 == 1 && asks.slices;
            if asks.only().is_none() || other || spared || out {
                continue;
            }
            let (before, after) = match asks.whole {
                true => (case.given.gpus >> at & 1, now.gpus >> at & 1),
                false => (case.given.slices & gpu.slices, now.slices & gpu.slices),
            };
            prop_assert_eq!(before, after, "GPU {} is kept from a job that it could serve", at);
        }
    }

    #[test]
    fn advice_costs_no_job_its_start(case in case()) {
        let (_, mut marks, _) = decide(&case);
        let had = marks.has_idle();
        // Nobody was preempted for the sake of the advice: all of it is taken back.
        prop_assert!(marks.offer_idle(true, NOW));
        prop_assert!(!marks.has_idle());
        let lifted = marks.take_lifted().to_vec();
        prop_assert_eq!(had, !lifted.is_empty());
        let idle = |mark: &Mark| matches!(mark.why, Why::OtherMode(_));
        prop_assert!(lifted.iter().all(idle));
        prop_assert!(marks.take_lifted().is_empty());
        // What somebody has stays kept.
        prop_assert!(marks.all().iter().all(|mark| !idle(mark)));
    }

    #[test]
    fn a_job_that_has_waited_gets_what_is_due(case in case()) {
        let (_, mut marks, _) = decide(&case);
        let due = |mark: &Mark| matches!(mark.why, Why::OtherMode(at) if at <= NOW);
        let any = marks.all().iter().any(due);
        prop_assert_eq!(marks.offer_idle(false, NOW), any);
        prop_assert!(marks.take_lifted().iter().all(due));
        prop_assert!(!marks.all().iter().any(due));
        if case.job.is_forecast {
            prop_assert!(!any, "due in a forecast, and kept");
        }
    }

    #[test]
    fn a_decision_is_the_same_each_time(case in case()) {
        let (one, other) = (decide(&case), decide(&case));
        prop_assert_eq!(one.1.all(), other.1.all());
        prop_assert_eq!(&one.0, &other.0);
        // A second look learns nothing new.
        let again = Case { node: one.0.clone(), ..case.clone() };
        prop_assert_eq!(&decide(&again).0, &one.0);
    }

    #[test]
    fn how_a_gpu_served_is_remembered(case in case()) {
        let (node, _, _) = decide(&case);
        for (at, gpu) in node.gpus.iter().enumerate() {
            let before = &case.node.gpus[at];
            let expected = match user(&case, at) {
                Some(user) if user != before.mode => (user, NOW),
                _ => (before.mode, before.since),
            };
            prop_assert_eq!((gpu.mode, gpu.since), expected);
        }
        // Also when gpuos.toml is read again.
        let mut anew = Node::new(7, &node.name, node.slices);
        for (at, gpu) in node.gpus.iter().enumerate() {
            let pool = PoolGpu::new(at).expect("a GPU");
            anew.add(gpu.nvml, gpu.gres, pool, 8, std::slice::from_ref(&node));
        }
        for (one, other) in anew.gpus.iter().zip(&node.gpus) {
            prop_assert_eq!((one.mode, one.since), (other.mode, other.since));
        }
    }

    /// Forecasts of an answerer that knows nothing of marks: it says when enough of the job's own mode is free.
    #[test]
    fn a_forecast_waits_for_all_that_it_counts_on(
        mut case in case(),
        ends in prop::collection::vec(1i64..500, 8),
        answers in prop::collection::vec(prop::option::of(0i64..600), 8),
    ) {
        case.job.is_forecast = true;
        let (_, mut marks, _) = decide(&case);
        let mut tried = 0;
        let mut best: Option<i64> = None;
        loop {
            let start = answers[tried as usize].map(|after| NOW + after);
            let answer = Forecast { tried, now: NOW, start };
            let ready = marks.lifted().iter().filter_map(Mark::moment).max();
            let expected = start.map(|start| start.max(ready.unwrap_or(0)));
            let sooner = expected.is_some_and(|start| best.is_none_or(|best| start < best));
            prop_assert_eq!(marks.take_forecast(&answer, |_| true), sooner);
            if sooner {
                best = expected;
            }
            prop_assert_eq!(marks.start(), best);
            prop_assert!(!marks.starts_too_late(None));
            if marks.starts_by(NOW) {
                break;
            }
            if tried == 0 {
                for (at, gpu) in case.node.gpus.iter().enumerate() {
                    let user = user(&case, at);
                    marks.ends(3, NOW + ends[at], |mode| match user == Some(mode) {
                        true => gpu.devices(mode),
                        false => 0,
                    });
                }
                marks.date();
                for mark in marks.all().iter().filter(|mark| mark.why == Why::Allocated) {
                    let at = case.node.gpus.iter().position(|gpu| gpu.nvml == mark.nvml);
                    prop_assert_eq!(mark.moment(), at.map(|at| NOW + ends[at]));
                }
            }
            let before = marks.lifted().len();
            let next = marks.all().iter().filter_map(Mark::moment).min();
            if !marks.offer_next(tried) {
                let useless = next.is_none_or(|next| best.is_some_and(|best| best <= next));
                prop_assert!(useless, "something sooner was not looked at");
                break;
            }
            prop_assert!(marks.lifted().len() > before);
            prop_assert!(marks.lifted()[before..].iter().all(|mark| mark.moment().is_some()));
            tried += 1;
            if !Marks::retries_forecast(tried) {
                break;
            }
        }
    }

    #[test]
    fn what_a_node_shows_is_understood_or_not_used(
        gpus in 1usize..5,
        (devices, slices) in (0usize..7, 0usize..41),
        (given, held, allocated) in (any::<u8>(), any::<u16>(), 0u64..10),
        flags in prop::collection::vec(prop::bool::weighted(0.2), 7),
    ) {
        let node = node(0, gpus, 0, 8);
        let flag = |at: usize| flags[at];
        let gres = |devices: usize, given: u64, at: usize| GresState {
            devices,
            allocated_bits: given,
            allocated: u64::from(given.count_ones()).max(allocated),
            has_topology: !flag(at),
            provisional: flag(at + 1),
            loses: flag(at + 2),
        };
        let state = NodeState {
            gpus: gres(devices, u64::from(given) & GpuSet::first(devices).0, 0),
            slices: gres(slices, u64::from(held) & GpuSet::first(slices).0, 3),
            shared: 0,
            power_saved: flag(6),
            out: GpuSet::EMPTY,
        };
        let both = [state.gpus, state.slices];
        let named = both.iter().all(|one| one.allocated <= u64::from(one.allocated_bits.count_ones()));
        let sound = named
            && devices >= gpus
            && slices == gpus * 8
            && both.iter().all(|one| one.has_topology && !one.loses);
        match node.read(&state) {
            Reading::Known(given) => {
                prop_assert!(sound);
                prop_assert_eq!((given.gpus, given.slices), (state.gpus.allocated_bits, state.slices.allocated_bits));
            }
            Reading::Unknown { for_nobody, passes } => {
                prop_assert!(!sound);
                // Whoever has slices there has GPUs that nobody may have whole.
                if state.slices.allocated > 0 {
                    prop_assert!(for_nobody);
                }
                let provisional = both.iter().any(|one| one.provisional);
                prop_assert_eq!(passes, !named || provisional);
                let off = state.power_saved && state.slices.allocated == 0;
                prop_assert!(!(off && for_nobody), "a node that power saving has off gets jobs");
            }
        }
    }

    /// The sentence comes where the job would have room with idle GPUs that it is not offered yet, and names exactly these.
    #[test]
    fn a_job_is_told_what_it_waits_for(case in case(), each in 1u64..4) {
        let (_, marks, now) = decide(&case);
        let mode = case.job.asks.only();
        let late = |mark: &&Mark| matches!(mark.why, Why::OtherMode(at) if at > NOW);
        let idle: Vec<&Mark> = marks.all().iter().filter(late).collect();
        prop_assert_eq!(marks.has_idle_later(NOW, false), !idle.is_empty());
        let all = GpuSet::first(case.node.gpus.len()).0;
        let slices = case.node.gpus.iter().fold(0, |all, gpu| all | gpu.slices);
        let free = match mode {
            Some(GpuMode::Slices) => slices & !now.slices,
            _ => all & !now.gpus,
        };
        let free = u64::from(free.count_ones());
        let wait = Wait {
            asks: mode,
            is_forecast: false,
            now: NOW,
            nodes: 1,
            each,
            sum: 0,
            after: 60,
            hold: 600,
        };
        let there = Candidate { node: 3, name: "n3", free };
        let said = marks.why_waits(&wait, [there].into_iter());
        let more: u64 = idle.iter().map(|mark| u64::from(mark.bits.count_ones())).sum();
        let expected = mode.is_some() && !idle.is_empty() && free + more >= each;
        prop_assert_eq!(said.is_some(), expected);
        if let Some(said) = said {
            let named = idle.iter().fold(GpuSet::EMPTY, |all, mark| all.with(mark.nvml.index()));
            let named = format!("n3 GPU {named}. ");
            prop_assert!(said.contains(&named), "{}", said);
        }
    }
}

#[test]
fn a_forecast_that_is_of_no_use_any_more_is_none() {
    let mut marks = Marks::default();
    let mut node = node(0, 1, 0, 8);
    let given = Allocated {
        slices: 1,
        ..Allocated::default()
    };
    let job = Job {
        asks: Asks {
            whole: true,
            slices: false,
        },
        spares_idle: true,
        patient_from: NOW,
        hold: 0,
        is_forecast: true,
        now: NOW,
    };
    node.mark(given, GpuSet::EMPTY, &job, &mut marks);
    marks.carry_out(0, |mark| Some((0, mark.bits)));
    marks.ends(0, NOW + 100, |_| 1);
    marks.date();
    assert!(marks.offer_next(0));
    let answer = Forecast {
        tried: 1,
        now: NOW,
        start: Some(NOW),
    };
    assert!(marks.take_forecast(&answer, |node| node == 0));
    assert_eq!(marks.start(), Some(NOW + 100));
    assert!(marks.starts_too_late(Some(NOW + 99)) && !marks.starts_too_late(Some(NOW + 100)));
    // On another node it waits for nothing that was taken back.
    let answer = Forecast {
        start: Some(NOW + 50),
        ..answer
    };
    assert!(marks.take_forecast(&answer, |node| node == 1));
    assert_eq!(marks.start(), Some(NOW + 50));
}

#[test]
fn whole_gpus_beside_slices_are_of_those_that_are_not_switchable() {
    let mut node = node(2, 2, 0, 8);
    let mut marks = Marks::default();
    let job = Job {
        asks: Asks {
            whole: true,
            slices: true,
        },
        spares_idle: false,
        patient_from: NOW,
        hold: 0,
        is_forecast: false,
        now: NOW,
    };
    node.mark(Allocated::default(), GpuSet::EMPTY, &job, &mut marks);
    assert!(marks.has_never());
    assert_eq!(marks.why_never(1, [(2, 3)].into_iter()), None);
    let said = marks
        .why_never(2, [(2, 3), (1, 1)].into_iter())
        .expect("a sentence");
    assert!(said.contains("no node has 2 others"), "{said}");
}
