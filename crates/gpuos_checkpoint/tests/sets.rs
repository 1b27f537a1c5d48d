//! Schemes as users write them, and nodes arranged in sets: what every arrangement keeps, and that one is found when there is one.

use std::collections::BTreeSet;
use std::time::Duration;

use gpuos_checkpoint::ids::NodeIndex;
use gpuos_checkpoint::sets::{MOST_NODES, NoSets, NodeDomains, Scheme, Set, arrange};
use gpuos_model::rng::Rng;
use proptest::prelude::*;

/// What this thread has computed so far, in steps of 10 ms: other programs beside it are none of its time.
fn computed() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields = text.rsplit_once(')').unwrap().1.split_whitespace();
    // utime and stime of proc(5).
    let ticks = fields
        .skip(11)
        .take(2)
        .map(|one| one.parse::<u64>().unwrap());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

fn scheme(text: &str) -> Scheme {
    text.parse().unwrap()
}

/// Nodes with one label each for the levels of `names`; an empty label is none.
fn nodes(names: &[&str], labels: &[Vec<String>]) -> Vec<NodeDomains> {
    let node = |labels: &Vec<String>| {
        let pairs = names.iter().zip(labels);
        NodeDomains::of(pairs.map(|(name, label)| (*name, label.as_str())))
    };
    labels.iter().map(node).collect()
}

/// Nodes of one level, by the numbers of their domains.
fn chassis(domains: &[usize]) -> Vec<NodeDomains> {
    let labels: Vec<Vec<String>> = domains.iter().map(|d| vec![format!("c{d}")]).collect();
    nodes(&["chassis"], &labels)
}

fn clash(a: &NodeDomains, b: &NodeDomains) -> bool {
    let same =
        |(level, label): (&String, &String)| !label.is_empty() && b.0.get(level) == Some(label);
    a.0.iter().any(same)
}

/// What every arrangement keeps.
fn sound(nodes: &[NodeDomains], scheme: Scheme, sets: &[Set]) {
    let mut seen: Vec<NodeIndex> = sets.iter().flat_map(|set| set.members.clone()).collect();
    seen.sort_unstable();
    let all: Vec<NodeIndex> = (0..nodes.len()).map(|n| NodeIndex(n as u16)).collect();
    assert_eq!(seen, all, "every node is in one set");
    for set in sets {
        let size = set.members.len();
        let least = scheme.nodes();
        assert!(
            (least..2 * least).contains(&size),
            "{size} members with {scheme}"
        );
        assert_eq!(usize::from(set.data) + usize::from(set.parity), size);
        assert_eq!(set.parity, scheme.parity());
        let stripes = set.geometry().unwrap();
        assert_eq!(
            (usize::from(stripes.members()), stripes.parity()),
            (size, set.parity)
        );
        for (place, a) in set.members.iter().enumerate() {
            for b in &set.members[place + 1..] {
                let (a, b) = (&nodes[usize::from(a.0)], &nodes[usize::from(b.0)]);
                assert!(!clash(a, b), "{a:?} and {b:?} in one set");
            }
        }
    }
}

/// Whether there is any arrangement, by trying all.
fn possible(nodes: &[NodeDomains], least: usize) -> bool {
    fn place(nodes: &[NodeDomains], least: usize, node: usize, sets: &mut Vec<Vec<usize>>) -> bool {
        if node == nodes.len() {
            return sets.iter().all(|set| set.len() >= least);
        }
        let missing: usize = sets.iter().map(|set| least.saturating_sub(set.len())).sum();
        if missing > nodes.len() - node {
            return false;
        }
        for at in 0..=sets.len() {
            if at == sets.len() {
                sets.push(Vec::new());
            }
            let free = sets[at]
                .iter()
                .all(|other| !clash(&nodes[node], &nodes[*other]));
            if free && sets[at].len() < 2 * least - 1 {
                sets[at].push(node);
                if place(nodes, least, node + 1, sets) {
                    return true;
                }
                sets[at].pop();
            }
            if sets.last().is_some_and(Vec::is_empty) {
                sets.pop();
            }
        }
        false
    }
    place(nodes, least, 0, &mut Vec::new())
}

#[test]
fn schemes_are_read_as_they_are_written() {
    for (text, nodes, parity) in [
        ("single", 1, 0),
        ("partner", 2, 1),
        ("xor:2", 2, 1),
        ("xor:64", 64, 1),
        ("rs:6+2", 8, 2),
        ("rs:1+16", 17, 16),
        ("rs:63+1", 64, 1),
    ] {
        let read = scheme(text);
        assert_eq!((read.nodes(), read.parity()), (nodes, parity), "{text}");
        assert_eq!(read.to_string(), text);
    }
}

#[test]
fn what_is_no_scheme_is_refused_with_the_forms_there_are() {
    let forms = "give l2=single, l2=partner, l2=xor:NODES (2 to 64) or l2=rs:DATA+PARITY (DATA from 1, PARITY 1 to 16, \
                 together at most 64)";
    for (text, why) in [
        ("", "it is not one of the known schemes"),
        ("raid", "it is not one of the known schemes"),
        ("Single", "it is not one of the known schemes"),
        ("single:1", "it is not one of the known schemes"),
        ("xor", "it is not one of the known schemes"),
        (
            "xor:",
            "a number is missing or has other characters than digits",
        ),
        (
            "xor:+8",
            "a number is missing or has other characters than digits",
        ),
        (
            "xor: 8",
            "a number is missing or has other characters than digits",
        ),
        ("xor:0", "a set needs at least 2 nodes"),
        ("xor:1", "a set needs at least 2 nodes"),
        ("xor:65", "a set has at most 64 nodes"),
        ("xor:99999999999999999999", "a set has at most 64 nodes"),
        ("rs:6", "the '+' between data and parity shards is missing"),
        (
            "rs:6+",
            "a number is missing or has other characters than digits",
        ),
        (
            "rs:6+2+1",
            "a number is missing or has other characters than digits",
        ),
        ("rs:0+2", "a stripe needs at least 1 data shard"),
        ("rs:6+0", "a stripe has 1 to 16 parity shards"),
        ("rs:6+17", "a stripe has 1 to 16 parity shards"),
        ("rs:60+5", "a set has at most 64 nodes"),
        ("rs:250+16", "a set has at most 64 nodes"),
    ] {
        let error = text.parse::<Scheme>().unwrap_err().to_string();
        assert_eq!(
            error,
            format!("l2={text} is not understood: {why}; {forms}")
        );
    }
    let long = "x".repeat(1000).parse::<Scheme>().unwrap_err().to_string();
    assert!(long.len() < 300, "{long}");
}

#[test]
fn schemes_that_were_received_are_checked() {
    let hostile = [
        Scheme::Xor { nodes: 0 },
        Scheme::Xor { nodes: 255 },
        Scheme::ReedSolomon {
            data: 255,
            parity: 255,
        },
        Scheme::ReedSolomon { data: 0, parity: 0 },
    ];
    for scheme in hostile {
        assert!(scheme.check().is_err());
        assert!(matches!(
            arrange(&chassis(&[1, 2, 3]), scheme),
            Err(NoSets::Scheme(_))
        ));
    }
}

#[test]
fn neighbours_go_round() {
    let sets = arrange(&chassis(&[0, 0, 1, 1, 2, 2]), scheme("xor:3")).unwrap();
    assert_eq!(sets.len(), 2);
    let members = &sets[0].members;
    assert_eq!(members, &[0, 2, 4].map(NodeIndex));
    assert_eq!(sets[0].right_of(members[0]), Some(members[1]));
    assert_eq!(sets[0].right_of(members[2]), Some(members[0]));
    assert_eq!(sets[0].right_of(sets[1].members[0]), None);
    let alone = arrange(&chassis(&[0, 0]), Scheme::Single).unwrap();
    assert_eq!((alone.len(), alone[1].data, alone[1].parity), (2, 1, 0));
    assert_eq!(alone[0].right_of(NodeIndex(0)), None);
    assert_eq!(arrange(&[], Scheme::Single), Ok(Vec::new()));
}

#[test]
fn nodes_without_labels_share_nothing() {
    let bare = vec![NodeDomains::default(); 10];
    let sets = arrange(&bare, scheme("rs:3+1")).unwrap();
    sound(&bare, scheme("rs:3+1"), &sets);
    assert_eq!(sets.len(), 2);
    let empty = nodes(&["chassis"], &vec![vec![String::new()]; 10]);
    assert_eq!(arrange(&empty, scheme("rs:3+1")), Ok(sets));
}

#[test]
fn refusals_say_what_would_do() {
    let said =
        |nodes: &[NodeDomains], text: &str| arrange(nodes, scheme(text)).unwrap_err().to_string();
    let apart = |count: usize| chassis(&(0..count).collect::<Vec<usize>>());
    assert_eq!(
        said(&apart(5), "rs:6+2"),
        "l2=rs:6+2 needs at least 8 nodes, and the job has 5; ask for more nodes, or give l2=rs:3+2"
    );
    assert_eq!(
        said(&apart(2), "rs:6+2"),
        "l2=rs:6+2 needs at least 8 nodes, and the job has 2; ask for more nodes, or give l2=partner"
    );
    assert_eq!(
        said(&apart(3), "xor:8"),
        "l2=xor:8 needs at least 8 nodes, and the job has 3; ask for more nodes, or give l2=xor:3"
    );
    assert_eq!(
        said(&apart(1), "partner"),
        "l2=partner needs at least 2 nodes, and the job has 1; ask for more nodes, or give l2=single, which keeps nothing for lost nodes"
    );
    assert_eq!(
        said(&chassis(&[0, 0, 1]), "xor:8"),
        "l2=xor:8 needs at least 8 nodes, and the job has 3; ask for more nodes, or give l2=single, which keeps nothing for lost nodes"
    );
    // 16 nodes make two sets; three nodes of a chassis need three, of five nodes each.
    let mut domains: Vec<usize> = (0..16).collect();
    domains[..3].fill(0);
    assert_eq!(
        said(&chassis(&domains), "rs:6+2"),
        "l2=rs:6+2 is impossible: 3 nodes of chassis domain c0, only 2 sets of 8 or more among 16 nodes; \
         it takes 3 sets or more: give l2=rs:3+2, or ask for nodes of other chassis domains"
    );
    sound(
        &chassis(&domains),
        scheme("rs:3+2"),
        &arrange(&chassis(&domains), scheme("rs:3+2")).unwrap(),
    );
    domains = (0..22).collect();
    domains[..3].fill(0);
    assert_eq!(
        said(&chassis(&domains), "rs:6+2"),
        "l2=rs:6+2 is impossible: 3 nodes of chassis domain c0, only 2 sets of 8 or more among 22 nodes; \
         it takes 3 sets or more: give l2=rs:5+2 or l2=rs:6+1, or ask for nodes of other chassis domains"
    );
    assert_eq!(
        said(&chassis(&[0, 0, 0, 0, 1]), "partner"),
        "l2=partner is impossible: 4 nodes of chassis domain c0, only 2 sets of 2 or more among 5 nodes; \
         it takes 4 sets or more: give l2=single, which keeps nothing for lost nodes, or ask for nodes of other chassis domains"
    );
    let many = vec![NodeDomains::default(); 65_537];
    assert_eq!(
        said(&many, "partner"),
        "65537 nodes cannot be arranged in sets: 65536 can be numbered; use fewer nodes in a job"
    );
}

#[test]
fn what_counting_does_not_rule_out_and_is_not_found_says_so() {
    // The first node shares something with each of the others, and no domain has more than two nodes.
    let label = |yes: bool, text: &str| if yes { text.to_string() } else { String::new() };
    let star: Vec<Vec<String>> = (0..4)
        .map(|node| {
            (1..4)
                .map(|other| label(node == 0 || node == other, "x"))
                .collect()
        })
        .collect();
    let star = nodes(&["chassis", "leaf", "power"], &star);
    assert!(!possible(&star, 2));
    assert_eq!(
        arrange(&star, Scheme::Partner).unwrap_err().to_string(),
        "l2=partner: no arrangement of 4 nodes found that keeps their chassis, leaf, power domains apart, though counting does not \
         rule one out; give l2=single, which keeps nothing for lost nodes, or demand fewer levels"
    );
}

#[test]
fn fewer_and_larger_sets_are_taken_where_small_ones_cannot_be() {
    // Each of three nodes shares something with each of three others: only threes of a kind are left.
    let labels: Vec<Vec<String>> = (0..6_usize)
        .map(|node| {
            (0..3)
                .map(|level| format!("x{}", (node % 3 + node / 3 * level) % 3))
                .collect()
        })
        .collect();
    let six = nodes(&["a", "b", "c"], &labels);
    assert!(possible(&six, 2));
    let sets = arrange(&six, Scheme::Partner).unwrap();
    sound(&six, Scheme::Partner, &sets);
    assert_eq!(sets.len(), 2);
}

#[test]
fn many_nodes_are_arranged_at_once() {
    // Chassis of 4 within leaves of 16, power that crosses both, and cooling that crosses all.
    let label = |n: usize| {
        let labels = [
            format!("c{}", n / 4),
            format!("f{}", n * 7 % 53),
            format!("l{}", n / 16),
            format!("p{}", n % 157),
        ];
        labels.to_vec()
    };
    let labels: Vec<Vec<String>> = (0..1250).map(label).collect();
    let nested: Vec<Vec<String>> = labels
        .iter()
        .map(|l| vec![l[0].clone(), l[2].clone()])
        .collect();
    let two: Vec<Vec<String>> = labels
        .iter()
        .map(|l| vec![l[2].clone(), l[3].clone()])
        .collect();
    for (names, labels) in [
        (&["chassis", "leaf"][..], nested),
        (&["leaf", "power"][..], two),
        (&["chassis", "cooling", "leaf", "power"][..], labels),
    ] {
        let all = nodes(names, &labels);
        for text in ["partner", "xor:8", "rs:6+2", "rs:12+4", "rs:30+2"] {
            let begun = computed();
            let sets = arrange(&all, scheme(text)).unwrap();
            let took = computed() - begun;
            sound(&all, scheme(text), &sets);
            // A few hundredths of this on an idle machine, without optimisation.
            assert!(
                took < Duration::from_secs(1),
                "{took:?} for {text} and {names:?}"
            );
        }
    }
}

/// Nodes with labels by chance; each level has `domains` domains of about the same size.
fn shuffled(count: usize, domains: usize, levels: usize, rng: &mut Rng) -> Vec<NodeDomains> {
    let mut labels = vec![Vec::new(); count];
    for _ in 0..levels {
        let mut order: Vec<usize> = (0..count).collect();
        rng.shuffle(&mut order);
        for (nth, node) in order.into_iter().enumerate() {
            labels[node].push(format!("{}", nth % domains));
        }
    }
    nodes(&["a", "b", "c", "d"][..levels], &labels)
}

#[test]
fn three_crossing_levels_of_few_nodes_are_nearly_always_arranged_if_they_can_be() {
    let mut rng = Rng::new(3);
    let (mut found, mut missed, mut none) = (0, 0, 0);
    for _ in 0..400 {
        let count = 4 + rng.below(5) as usize;
        let size = 2 + rng.below(2) as u8;
        let nodes = shuffled(count, 3 + rng.below(3) as usize, 3, &mut rng);
        let scheme = Scheme::Xor { nodes: size };
        match arrange(&nodes, scheme) {
            Ok(_) => found += 1,
            Err(_) if possible(&nodes, scheme.nodes()) => missed += 1,
            Err(_) => none += 1,
        }
    }
    assert!(
        missed <= found / 100 && none > 30,
        "{found} found, {missed} missed, {none} impossible"
    );
}

#[test]
fn many_nodes_with_little_room_are_arranged_and_a_vain_search_ends_soon() {
    // Sets of eight different domains out of so many, at so many levels at once.
    for (domains, levels, there) in [(10, 3, true), (12, 4, true), (8, 4, false)] {
        let all = shuffled(1248, domains, levels, &mut Rng::new(5));
        let begun = computed();
        let found = arrange(&all, scheme("xor:8"));
        let took = computed() - begun;
        match found {
            Ok(sets) => sound(&all, scheme("xor:8"), &sets),
            Err(error) => assert!(
                !there && matches!(error, NoSets::NotFound { .. }),
                "{error}"
            ),
        }
        // Half a second on an idle machine.
        assert!(
            took < Duration::from_secs(10),
            "{took:?} for {domains} domains at {levels} levels"
        );
    }
}

/// Nodes of one level, and of nested ones: each coarser level is made of whole domains of the finer.
fn nested() -> impl Strategy<Value = Vec<NodeDomains>> {
    let node = prop::collection::vec(0..8_usize, 1..10);
    (
        node,
        prop::collection::vec(0..6_usize, 8),
        prop::collection::vec(0..4_usize, 6),
    )
        .prop_map(|(finest, middle, coarse)| {
            let labels: Vec<Vec<String>> = finest
                .into_iter()
                .map(|d| {
                    vec![
                        format!("{d}"),
                        format!("{}", middle[d]),
                        format!("{}", coarse[middle[d]]),
                    ]
                })
                .collect();
            nodes(&["chassis", "leaf", "power"], &labels)
        })
}

fn crossing(levels: usize) -> impl Strategy<Value = Vec<NodeDomains>> {
    let label =
        prop_oneof![3 => (0..5_usize).prop_map(|d| format!("{d}")), 2 => Just(String::new())];
    let node = prop::collection::vec(label, levels);
    let names = ["a", "b", "c"];
    prop::collection::vec(node, 2..10).prop_map(move |labels| nodes(&names[..levels], &labels))
}

fn agrees(nodes: &[NodeDomains], scheme: Scheme) {
    match arrange(nodes, scheme) {
        Ok(sets) => sound(nodes, scheme, &sets),
        Err(error) => {
            assert!(!matches!(error, NoSets::NotFound { .. }), "{error}");
            assert!(!possible(nodes, scheme.nodes()), "{error} {nodes:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn one_level_is_arranged_exactly_if_it_can_be(domains in prop::collection::vec(0..6_usize, 1..10), size in 2..5_u8) {
        agrees(&chassis(&domains), Scheme::Xor { nodes: size });
    }

    #[test]
    fn nested_levels_are_arranged_exactly_if_they_can_be(nodes in nested(), size in 2..5_u8) {
        agrees(&nodes, Scheme::Xor { nodes: size });
    }

    #[test]
    fn two_crossing_levels_are_arranged_exactly_if_they_can_be(nodes in crossing(2), size in 2..5_u8) {
        agrees(&nodes, Scheme::Xor { nodes: size });
    }

    #[test]
    fn three_crossing_levels_are_kept_apart_and_impossible_is_never_said_of_what_can_be(
        nodes in crossing(3), size in 2..4_u8,
    ) {
        let scheme = Scheme::Xor { nodes: size };
        match arrange(&nodes, scheme) {
            Ok(sets) => sound(&nodes, scheme, &sets),
            Err(NoSets::NotFound { .. }) => {}
            Err(error) => prop_assert!(!possible(&nodes, scheme.nodes()), "{}", error),
        }
    }

    #[test]
    fn two_crossing_levels_of_many_nodes_make_sets_of_even_size(
        pairs in prop::collection::vec((0..25_usize, 0..25_usize), 60..200), size in 2..6_u8,
    ) {
        let labels: Vec<Vec<String>> = pairs.iter().map(|(a, b)| vec![format!("{a}"), format!("{b}")]).collect();
        let nodes = nodes(&["leaf", "power"], &labels);
        let scheme = Scheme::Xor { nodes: size };
        match arrange(&nodes, scheme) {
            Ok(sets) => {
                sound(&nodes, scheme, &sets);
                let sizes: BTreeSet<usize> = sets.iter().map(|set| set.members.len()).collect();
                prop_assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1);
            }
            Err(error) => prop_assert!(matches!(error, NoSets::Crowded { crowd, sets, .. } if crowd > sets), "{}", error),
        }
    }

    #[test]
    fn any_domains_give_sets_that_keep_the_rules_and_what_is_offered_instead_can_be_had(
        domains in prop::collection::vec(0..60_usize, 0..200), data in 1..10_u8, parity in 1..4_u8,
    ) {
        let nodes = chassis(&domains);
        let scheme = Scheme::ReedSolomon { data, parity };
        match arrange(&nodes, scheme) {
            Ok(sets) => {
                sound(&nodes, scheme, &sets);
                let sizes: BTreeSet<usize> = sets.iter().map(|set| set.members.len()).collect();
                prop_assert!(sizes.last().unwrap() - sizes.first().unwrap() <= 1);
                prop_assert_eq!(arrange(&nodes, scheme).unwrap(), sets);
            }
            Err(NoSets::Crowded { fits, .. } | NoSets::TooFew { fits, .. }) => {
                for other in fits {
                    prop_assert_eq!(other.check(), Ok(other));
                    sound(&nodes, other, &arrange(&nodes, other).unwrap());
                }
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(xor|rs|single|partner)?:?[0-9+:]{0,6}", any: String) {
        for text in [text, any] {
            if let Ok(read) = text.parse::<Scheme>() {
                prop_assert!(read.nodes() <= usize::from(MOST_NODES) && read.parity() <= 16);
                prop_assert_eq!(read.to_string().parse::<Scheme>(), Ok(read));
            }
        }
    }
}
