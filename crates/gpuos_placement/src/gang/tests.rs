use gpuos_model::cluster::{Fabric, FabricLevel};
use gpuos_model::gpuset::GpuSet;
use proptest::prelude::*;

use super::*;

fn shape(text: &str) -> GroupShape {
    GroupShape::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn shapes_are_read_in_any_order_and_each_group_once() {
    let one = shape("tp8:pp4:dp16");
    assert_eq!((one.tp, one.pp, one.dp, one.cp, one.ep), (8, 4, 16, 1, 1));
    assert_eq!(one.ranks(), 512);
    assert_eq!(shape("DP16:TP8:cp2:pp4:ep32").ranks(), 1024);
    assert_eq!(shape("dp1").to_string(), "dp1");
    for (bad, what) in [
        ("", "a group is missing"),
        ("tp8:", "a group is missing"),
        ("tp8:tp2", "tp stands there twice"),
        ("xp8", "'xp8' is no group"),
        ("tp", "tp has no size"),
        ("tp0", "tp has no size"),
        ("tp65537", "tp has no size"),
        ("8tp", "'8tp' is no group"),
        ("tp-8", "'tp-8' is no group"),
        ("tp8 :pp2", "'tp8 ' is no group"),
        ("tp65536:dp65536", "4294967296 ranks"),
        ("dp8:ep3", "ep3 is no part"),
    ] {
        let error = GroupShape::parse(bad).unwrap_err();
        assert!(error.contains(what), "{bad}: {error}");
    }
}

#[test]
fn the_job_must_have_a_gpu_for_each_rank() {
    let tp8 = shape("tp8:pp4:dp16");
    assert_eq!(tp8.check(512, Some(8)), Ok(()));
    assert_eq!(tp8.check(512, Some(4)), Ok(()));
    assert_eq!(
        tp8.check(256, Some(8)).unwrap_err(),
        "the groups make 8 x 4 x 16 = 512 ranks, and the job asks for 256 (32 nodes with 8 each) GPUs"
    );
    assert_eq!(
        tp8.check(512, Some(6)).unwrap_err(),
        "nodes with 6 GPUs would cut tensor-parallel groups of 8"
    );
    assert!(
        shape("dp4")
            .check(5, None)
            .unwrap_err()
            .contains("make 4 ranks")
    );
}

#[test]
fn ranks_count_in_the_order_of_writing() {
    // Megatron-LM's default counts tensor, then data, then pipeline.
    let megatron = shape("tp2:dp3:pp4");
    assert_eq!(megatron.coordinates(1), [1, 0, 0, 0]);
    assert_eq!(megatron.coordinates(2), [0, 0, 0, 1]);
    assert_eq!(megatron.coordinates(6), [0, 0, 1, 0]);
    assert_eq!(megatron.nested(6), 2);
    assert_eq!(shape("tp2:pp4:dp3").nested(6), 6);
}

#[test]
fn pipelines_stay_together_whatever_the_order() {
    // Four nodes of two GPUs, two leaves; pipelines of two stages.
    let fabric = Fabric {
        levels: vec![FabricLevel {
            name: "leaf".into(),
            domains: vec!["a".into(), "b".into()],
            domain_of: vec![0, 0, 1, 1],
            gbps: 0.0,
        }],
    };
    for text in ["tp2:pp2:dp2", "tp2:dp2:pp2"] {
        let shape = shape(text);
        let blocks = spread(&shape, 2);
        let mut nodes = vec![0; 4];
        for (node, &block) in blocks.iter().enumerate() {
            nodes[block as usize] = node as u32;
        }
        let spans = Spans::new(&shape, 2, &nodes, &fabric);
        assert_eq!(spans.levels, ["node", "node", "leaf", "any"], "{text}");
    }
    // Without the order, stages of the second form would lie in both leaves.
    let plain = Spans::new(&shape("tp2:dp2:pp2"), 2, &[0, 1, 2, 3], &fabric);
    assert_eq!(plain.levels[2], "any");
}

#[test]
fn tensor_groups_are_linked_pairs() {
    let pairs = gpuos_model::node_types::by_name("pairs-8").unwrap();
    assert_eq!(
        gpu_order(&pairs, GpuSet::first(8), 2),
        [0, 1, 2, 3, 4, 5, 6, 7]
    );
    assert_eq!(gpu_order(&pairs, GpuSet(0b0011_1110), 2), [2, 3, 4, 5, 1]);
    assert_eq!(gpu_order(&pairs, GpuSet(0b1100_1101), 2), [2, 3, 6, 7, 0]);
    assert_eq!(gpu_order(&pairs, GpuSet(0b0000_1111), 4), [0, 1, 2, 3]);
}

#[test]
fn rank_file() {
    let nodes = ["n1", "n2"].map(String::from);
    let file = RankFile {
        shape: shape("tp2:pp2"),
        nodes: &nodes,
        per_node: 2,
        gpus: &[0, 1],
        sockets: &[0, 1],
    };
    assert_eq!(
        file.text(),
        "# gpuos ranks, shape tp2:pp2\n#node 0 n1\n#node 1 n2\n#gpus 0,1\n\
         rank 0=n1 slot=0:*\nrank 1=n1 slot=1:*\nrank 2=n2 slot=0:*\nrank 3=n2 slot=1:*\n"
    );
    let part = RankFile {
        sockets: &[],
        ..file
    };
    assert!(part.text().ends_with("rank 3=n2 slot=0:*\n"));
}

proptest! {
    #[test]
    fn shapes_read_back(text in "\\PC{0,30}|((tp|cp|pp|dp|ep)[0-9]{1,5}:?){1,5}") {
        if let Ok(shape) = GroupShape::parse(&text) {
            prop_assert_eq!(GroupShape::parse(&shape.to_string()).map(|s| s.ranks()), Ok(shape.ranks()));
        }
    }

    #[test]
    fn every_rank_has_one_node_and_groups_have_their_size(
        sizes in (1u32..5, 1u32..4, 1u32..5, 1u32..5),
        order in Just(vec!["tp", "cp", "pp", "dp"]).prop_shuffle(),
        per_node in 1u32..9,
    ) {
        let (tp, cp, pp, dp) = sizes;
        let size = |word: &str| match word { "tp" => tp, "cp" => cp, "pp" => pp, _ => dp };
        let text: Vec<String> = order.iter().map(|word| format!("{word}{}", size(word))).collect();
        let shape = shape(&text.join(":"));
        let mut blocks = spread(&shape, per_node);
        blocks.sort_unstable();
        let expected: Vec<u32> = (0..shape.ranks().div_ceil(per_node)).collect();
        prop_assert_eq!(blocks, expected);
        let mut nested: Vec<u32> = (0..shape.ranks()).map(|rank| shape.nested(rank)).collect();
        nested.sort_unstable();
        prop_assert_eq!(nested, (0..shape.ranks()).collect::<Vec<_>>());
        for kind in GroupKind::ALL {
            let mut count = vec![0; (shape.ranks() / shape.size(kind)) as usize];
            (0..shape.ranks()).for_each(|rank| count[shape.group(kind, rank) as usize] += 1);
            prop_assert!(count.iter().all(|&n| n == shape.size(kind)));
        }
    }
}
