use gpuos_model::cluster::NodeType;
use gpuos_model::figures::Precision;
use gpuos_model::node_types;

use super::collective::{Ranks, allreduce_ns};
use super::*;
use crate::fabric::UNBOUNDED;
use crate::gang::GroupShape;

fn types() -> Vec<NodeType> {
    ["dgx-a100", "dgx-h100", "b200", "l40s-8"]
        .map(|name| node_types::by_name(name).unwrap())
        .into()
}

fn place(node_type: &NodeType) -> Place<'_> {
    Place {
        node_type,
        gpus: 8,
        nodes: 1,
        nvlink: node_type.nvswitch,
        bus: if node_type.nvswitch { 37_000 } else { 2_000 },
        outside: 0,
        condition: Condition::default(),
    }
}

fn objectives(weights: [i64; 5]) -> Objectives {
    Objectives::new(weights).unwrap()
}

#[test]
fn figures_of_shipped_types_are_known() {
    for node_type in node_types::builtin() {
        let figures = node_type.figures;
        assert!(figures.rate(Precision::Bf16) > 0, "{}", node_type.name);
        assert!(
            figures.memory_gbps > 0 && figures.gpu_watts > 0,
            "{}",
            node_type.name
        );
        assert_eq!(figures.price_milli, 0, "prices are the site's");
    }
    let h100 = node_types::by_name("dgx-h100").unwrap().figures;
    assert_eq!(h100.rate(Precision::Fp8), 19_789);
    // No FP4: it runs as FP8. The A100 has neither: as bf16.
    assert_eq!(h100.rate(Precision::Fp4), 19_789);
    let a100 = node_types::by_name("dgx-a100").unwrap().figures;
    assert_eq!(a100.rate(Precision::Fp8), 3_120);
    // 10.2 kW less eight times 700 W, by eight.
    assert_eq!(h100.watts(1, 8), 700 + 575);
}

#[test]
fn throughput_prefers_the_fast_and_energy_and_cost_what_they_say() {
    let mut types = types();
    let (dear, cheap) = (30_000, 1_000);
    for node_type in &mut types {
        node_type.figures.price_milli = if node_type.name == "b200" {
            dear
        } else {
            cheap
        };
    }
    let model = Model::new(&types, Precision::Bf16, 70_000);
    let work = Workload::of_profile(Profile::Compute);
    let best = |weights: [i64; 5]| {
        let objectives = objectives(weights);
        let score = |t: &&NodeType| model.score(&place(t), &work, &objectives, 0).total;
        types.iter().max_by_key(score).unwrap().name.clone()
    };
    assert_eq!(best([100, 0, 0, 0, 0]), "b200");
    assert_eq!(best([0, 0, 0, 100, 0]), "dgx-h100");
    assert_eq!(best([0, 0, 100, 0, 0]), "b200");
    let score = model.score(&place(&types[1]), &work, &objectives([60, 0, 40, 0, 0]), 0);
    let parts = &score.parts;
    assert_eq!(score.total, parts[0].value * 60 + parts[2].value * 40);
    let text = score.to_string();
    assert!(
        text.contains("throughput") && text.contains("x 40 %"),
        "{text}"
    );
    assert!(!text.contains("fairness"), "{text}");
}

#[test]
fn what_a_job_does_decides_what_counts() {
    let types = types();
    let model = Model::new(&types, Precision::Bf16, 37_000);
    let all = objectives([100, 0, 0, 0, 0]);
    let speed = |profile, bus| {
        let place = Place {
            bus,
            ..place(&types[1])
        };
        model
            .score(&place, &Workload::of_profile(profile), &all, 0)
            .total
    };
    // A tenth of the bandwidth hurts a job that communicates, and hardly one that computes.
    let loss = |profile| 1000 - speed(profile, 3_700) * 1000 / speed(profile, 37_000);
    assert!(
        loss(Profile::Communication) > 800,
        "{}",
        loss(Profile::Communication)
    );
    assert!(loss(Profile::Io) < 450, "{}", loss(Profile::Io));
    assert!(loss(Profile::Compute) < loss(Profile::Communication));
    // Not known is not held against it.
    assert_eq!(
        speed(Profile::Communication, UNBOUNDED),
        speed(Profile::Communication, 37_000)
    );
}

#[test]
fn hot_capped_and_sick_places_cost_more() {
    let types = types();
    let model = Model::new(&types, Precision::Bf16, 37_000);
    let work = Workload::of_profile(Profile::Compute);
    let all = objectives([100, 0, 0, 0, 0]);
    let total = |condition| {
        let place = Place {
            condition,
            ..place(&types[2])
        };
        model.score(&place, &work, &all, 0).total
    };
    let fine = Condition::default();
    let hot = total(Condition {
        celsius: 83,
        ..fine
    });
    let capped = total(Condition {
        cap_watts: 700,
        ..fine
    });
    let sick = total(Condition {
        health: 500,
        ..fine
    });
    assert!(hot < total(fine) && capped < total(fine) && sick < total(fine));
    assert_eq!(
        total(Condition {
            celsius: 60,
            ..fine
        }),
        total(fine)
    );
    assert_eq!(total(Condition { health: 0, ..fine }), 0);
    assert_eq!(
        Condition {
            cap_watts: 700,
            ..fine
        }
        .clock(&types[2].figures),
        900
    );
    // A cap saves energy for the work.
    let energy = objectives([0, 0, 100, 0, 0]);
    let of = |condition| {
        let place = Place {
            condition,
            ..place(&types[1])
        };
        model.score(&place, &work, &energy, 0).total
    };
    assert!(
        of(Condition {
            cap_watts: 490,
            ..fine
        }) > of(fine)
    );
}

#[test]
fn fairness_and_latency() {
    let types = types();
    let model = Model::new(&types, Precision::Bf16, 37_000);
    let work = Workload::default();
    let fair = objectives([0, 0, 0, 0, 100]);
    let total = |t: &NodeType, over| model.score(&place(t), &work, &fair, over).total;
    assert_eq!(total(&types[2], 0), total(&types[3], 0));
    assert!(
        total(&types[2], 1000) < total(&types[3], 1000),
        "who had much gets the slow ones"
    );
    let quick = objectives([0, 100, 0, 0, 0]);
    let at = |nodes| {
        let place = Place {
            nodes,
            ..place(&types[1])
        };
        model.score(&place, &work, &quick, 0).total
    };
    assert!(at(1) > at(2) && at(2) > at(8));
}

#[test]
fn collectives_take_latency_and_bandwidth() {
    let ranks = |count, nodes| Ranks {
        count,
        nodes,
        nvlink: true,
    };
    assert_eq!(allreduce_ns(1 << 30, ranks(1, 1), 100), 0);
    // 1 GB over eight GPUs at 370 GB/s: 2 x 7/8 GB by 370 GB/s is 4.73 ms, and the steps.
    let time = allreduce_ns(1_000_000_000, ranks(8, 1), 37_000);
    assert!((4_729_000..4_800_000).contains(&time), "{time}");
    // Small ones go by the low-latency tree: 6.8 us and two steps for each of the others.
    assert_eq!(allreduce_ns(0, ranks(8, 1), 37_000), 6_600 + 14 * 600);
    assert_eq!(
        allreduce_ns(0, ranks(64, 8), 37_000),
        6_800 + 14 * 600 + 6 * 5_000
    );
    assert!(allreduce_ns(u64::MAX, ranks(2, 2), 1) > 0);
}

#[test]
fn group_shapes_tell_how_much_is_communicated() {
    let of = |text: &str| Workload::of_shape(&GroupShape::parse(text).unwrap());
    for text in ["dp1", "dp8", "tp8", "tp8:pp4:dp16", "tp8:cp4:pp4:dp16:ep8"] {
        let w = of(text);
        assert_eq!(
            w.compute + w.memory + w.communication + w.io,
            WHOLE,
            "{text}"
        );
    }
    assert!(of("tp8").communication > of("dp8").communication);
    assert!(of("tp8:pp4:dp16").communication > of("tp8").communication);
}

fn end(name: &str, seconds: u32, bus: u32) -> End<'_> {
    End {
        user: "ann",
        name,
        gpus: 16,
        seconds,
        bus,
        completed: true,
    }
}

#[test]
fn history_learns_time_and_communication() {
    let mut history = History::new(8);
    // 60 s of work, and 40 s of communication at 100 GB/s.
    for bus in [10_000, 5_000, 20_000, 10_000, 2_500] {
        history.note(&end("train", 60 + 400_000 / bus, bus));
    }
    history.note(&End {
        completed: false,
        ..end("train", 1, 1)
    });
    let record = history.get("ann", "train").unwrap();
    assert_eq!((record.runs, record.gpus), (5, 16));
    // The mean of 1/bandwidth is 1.7 times the reference's: 68 of 128 s.
    assert_eq!(record.communication, Some(531));
    assert_eq!(record.seconds, 128);
    let work = Workload::default().with_communication(531);
    assert_eq!(work.communication, 531);
    assert_eq!(
        work.compute + work.memory + work.communication + work.io,
        WHOLE
    );
    // One bandwidth teaches nothing about it; another size starts anew.
    let mut history = History::new(8);
    (0..9).for_each(|_| history.note(&end("same", 100, 10_000)));
    assert_eq!(history.get("ann", "same").unwrap().communication, None);
    history.note(&End {
        gpus: 8,
        ..end("same", 50, 10_000)
    });
    assert_eq!(history.get("ann", "same").unwrap().runs, 1);
    assert_eq!(history.get("bob", "same"), None);
}

#[test]
fn history_is_bounded_and_forgets_the_oldest() {
    let mut history = History::new(3);
    for name in ["a", "b", "c", "a", "d"] {
        history.note(&end(name, 10, 0));
    }
    assert_eq!(history.len(), 3);
    assert!(history.get("ann", "b").is_none());
    assert!(
        ["a", "c", "d"]
            .iter()
            .all(|name| history.get("ann", name).is_some())
    );
    (0..1000).for_each(|_| history.note(&end("a", u32::MAX, 1)));
    assert!(history.get("ann", "a").unwrap().runs <= 65);
    let long = "x".repeat(10_000);
    history.note(&end(&long, 10, 0));
    assert!(history.get("ann", &long).is_some());
}

#[test]
fn weights_in_a_text_read_back_or_are_refused_with_a_sentence() {
    for text in [
        "throughput=100",
        "throughput=40,energy=60",
        "latency=1,cost=2,fairness=97",
    ] {
        assert_eq!(text.parse::<Objectives>().unwrap().to_string(), text);
    }
    for (text, what) in [
        (
            "",
            "'' is not one of throughput, latency, energy, cost, fairness",
        ),
        ("energy", "energy: '' is no percentage"),
        (
            "energy=60,throughput=50",
            "contradict each other, they make 110",
        ),
        ("energy=-1,throughput=101", "energy: '-1' is no percentage"),
        ("energy=50,energy=50", "energy stands twice"),
        ("watts=100", "'watts' is not one of"),
    ] {
        let why = text.parse::<Objectives>().unwrap_err();
        assert!(
            why.contains(what) && why.contains("add up to 100"),
            "{text}: {why}"
        );
    }
    let even = objectives([50, 0, 50, 0, 0]);
    assert_eq!(even.heaviest(), Objective::Throughput);
    assert_eq!(objectives([30, 0, 0, 70, 0]).heaviest(), Objective::Cost);
}

proptest::proptest! {
    /// Any text is weights or a sentence.
    #[test]
    fn any_text_is_weights_or_refused(text in "[a-z]{0,10}=?[0-9-]{0,4},?(energy|cost)?=?[0-9]{0,5}|\\PC{0,40}") {
        match text.parse::<Objectives>() {
            Ok(objectives) => proptest::prop_assert_eq!(objectives.to_string().parse(), Ok(objectives)),
            Err(why) => proptest::prop_assert!(why.contains("write percent") && why.len() < 400, "{}", why),
        }
    }
}
