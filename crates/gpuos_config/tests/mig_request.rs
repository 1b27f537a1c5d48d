//! `--gpuos-mig`: how it is read, and which profile serves it.

use gpuos_config::options::parse_mig;
use gpuos_model::mig::Geometry;
use gpuos_placement::mig::MigRequest;
use proptest::prelude::*;

use crate::mig_support::{board, boards, numbered};

fn parsed(value: &str) -> MigRequest {
    parse_mig(value).unwrap_or_else(|e| panic!("{e}"))
}

/// Names and counts of what serves a request on a board.
fn serves(value: &str, on: &str) -> Vec<(String, u16)> {
    let geometry = board(on);
    let serves = parsed(value).serves(&geometry).unwrap_or_default();
    let named = |(profile, count): (usize, u16)| (geometry.profiles()[profile].name.clone(), count);
    serves.into_iter().map(named).collect()
}

fn one(value: &str, on: &str) -> String {
    match &serves(value, on)[..] {
        [(name, 1)] => name.clone(),
        other => panic!("{value} on {on}: {other:?}"),
    }
}

#[test]
fn the_smallest_profile_that_serves() {
    for (value, on, profile) in [
        ("3g.40gb", "h100-80gb", "3g.40gb"),
        ("MIG 3G.40GB", "h100-80gb", "3g.40gb"),
        ("10G", "h100-80gb", "1g.10gb"),
        ("10G", "a100-80gb", "1g.10gb"),
        // 9.5 GiB.
        ("10Gi", "a100-80gb", "1g.20gb"),
        ("10GB", "a100-40gb", "1g.10gb"),
        ("11G", "h100-80gb", "1g.20gb"),
        ("25G", "h100-80gb", "3g.40gb"),
        ("41G", "h100-80gb", "3g.40gb"),
        ("60G", "h100-80gb", "7g.80gb"),
        // 16 GiB are 17.2 GB.
        ("18G", "h200", "1g.35gb"),
        ("17G", "h200", "1g.18gb"),
        ("500M", "a30", "1g.6gb"),
        ("1/2", "h100-80gb", "3g.40gb"),
        ("1/4", "h100-80gb", "1g.20gb"),
        ("2/7", "h100-80gb", "2g.20gb"),
        ("1/7", "h100-80gb", "1g.10gb"),
        ("3/7", "h100-80gb", "3g.40gb"),
        ("4/7", "h100-80gb", "4g.40gb"),
        ("5/7", "h100-80gb", "7g.80gb"),
        ("1/1", "a30", "4g.24gb"),
        ("1/2", "a30", "2g.12gb"),
        ("1/4", "rtx-pro-6000", "1g.24gb"),
        ("1/2", "rtx-pro-6000", "2g.48gb"),
        ("10G+me", "h100-80gb", "1g.10gb+me"),
        ("1/2+me", "h100-80gb", "7g.80gb"),
        ("1/2+me", "a30", "2g.12gb+me"),
        ("1g.24gb-me", "rtx-pro-6000", "1g.24gb-me"),
        ("2g.48gb+me.all", "rtx-pro-6000", "2g.48gb+me.all"),
    ] {
        assert_eq!(one(value, on), profile, "{value} on {on}");
    }
    assert!(serves("90G", "h100-80gb").is_empty());
    assert!(serves("3g.40gb", "h200").is_empty());
}

#[test]
fn kinds_and_counts_add_up_and_large_ones_come_first() {
    let of = |value| {
        let all = serves(value, "h100-80gb").into_iter();
        all.map(|(name, count)| format!("{count} {name}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of("1g.10gb:2,3g.40gb:1"), ["1 3g.40gb", "2 1g.10gb"]);
    assert_eq!(of("10G:2,1g.10gb,1/2"), ["1 3g.40gb", "3 1g.10gb"]);
    assert!(parsed("1g.10gb:2:per-task").per_task);
    assert!(parsed("1g.10gb,1/2:per-task").per_task);
    assert!(!parsed("1g.10gb").per_task);
}

#[test]
fn what_is_not_understood_is_a_sentence_with_the_form() {
    let long = "1g.10gb,".repeat(200);
    for (value, word) in [
        ("", "missing"),
        ("3g", "'3g'"),
        ("g.40gb", "'g.40gb'"),
        ("10", "'10'"),
        ("0G", "'0g'"),
        ("10K", "'10k'"),
        ("3G.", "not understood"),
        ("99999999999999999999G", "not understood"),
        ("18446744073709551615T", "not understood"),
        ("1/0", "part"),
        ("3/2", "part"),
        ("1/17", "part"),
        ("-1/2", "not understood"),
        ("1g.10gb:", "number of slices"),
        ("1g.10gb:0", "number of slices"),
        ("1g.10gb:-1", "number of slices"),
        ("1g.10gb:+1", "number of slices"),
        ("1g.10gb:70000", "number of slices"),
        ("1g.10gb:per-task:2", "number of slices"),
        ("1g.10gb,,1/2", "missing"),
        ("10G+gfx", "profile's name only"),
        ("1g.10gb+", "not understood"),
        ("a,b,c,d,e,f,g,h,i", "more than 8"),
        (&long, "longer than 1024"),
    ] {
        let error = parse_mig(value).expect_err(value).to_string();
        assert!(error.contains(word), "{value}: {error}");
        assert!(error.contains("--gpuos-mig="), "{error}");
        assert!(
            error.contains("write a profile (3g.40gb), memory (10G)"),
            "{error}"
        );
        assert!(error.len() < 500, "{error}");
    }
}

#[test]
fn a_cluster_that_lacks_it_names_what_it_has() {
    let (h100, a30) = (board("h100-80gb"), board("a30"));
    let cluster = [(&h100, 8), (&a30, 4)];
    let refused = |value: &str, tasks| {
        let error = parsed(value).resolve(&cluster, tasks);
        let error = error.expect_err(value);
        format!("{}; write {}", error.reason, error.accepted)
    };
    for (value, tasks, word) in [
        ("3g.20gb", 1, "has a profile 3g.20gb"),
        ("3g.40gb+me", 1, "has a profile 3g.40gb+me"),
        ("90G", 1, "has a profile of 90G"),
        ("1g.10gb,1g.6gb", 1, "no kind of GPU has all of them"),
        ("1g.10gb:57", 1, "no node has so many at once"),
        ("1g.10gb:per-task", 57, "no node has so many at once"),
        ("1g.10gb+me:9", 1, "no node has so many at once"),
    ] {
        let error = refused(value, tasks);
        assert!(error.contains(word), "{error}");
        let names = "a profile of this cluster: 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, \
                     4g.40gb, 7g.80gb; or 1g.6gb, 1g.6gb+me, 2g.12gb, 2g.12gb+me, 4g.24gb";
        assert!(error.contains(names), "{error}");
    }
    let none = parsed("1g.10gb")
        .resolve(&[], 1)
        .expect_err("nothing")
        .accepted;
    assert!(
        none.contains("no GPU of this cluster is in MIG mode"),
        "{none}"
    );

    let both = parsed("1/2").resolve(&cluster, 1).unwrap();
    let of = |geometry: &Geometry, name| Some(vec![(numbered(geometry, name), 1)]);
    assert_eq!(both, [of(&h100, "3g.40gb"), of(&a30, "2g.12gb")]);
    let one = parsed("40G").resolve(&cluster, 1).unwrap();
    assert_eq!(one, [of(&h100, "3g.40gb"), None]);
    // Sixteen halves: the eight H100 hold them, the four A30 not.
    let many = parsed("1/2:per-task").resolve(&cluster, 16).unwrap();
    assert!(many[0].is_some() && many[1].is_none());
}

proptest! {
    #[test]
    fn no_text_is_too_odd(value in ".{0,80}") {
        if let Ok(request) = parse_mig(&value) {
            for (_, geometry) in boards() {
                request.resolve(&[(&geometry, 8)], 4).ok();
            }
        }
    }

    /// A request is written as it is read, and what serves it serves it.
    #[test]
    fn what_is_written_is_read(
        kinds in proptest::collection::vec(
            (0usize..40, 1u16..20, proptest::bool::ANY), 1..5),
        per_task in proptest::bool::ANY,
    ) {
        let words: Vec<String> = kinds.iter().map(|&(what, count, me)| {
            let what = match what {
                n @ 0..=9 => format!("{}/{}", n % 3 + 1, n % 5 + 3),
                n @ 10..=29 => format!("{}{}", n, ["G", "Gi", "M", "GiB"][n % 4]),
                n => format!("{}g.{}gb", n % 7 + 1, n),
            };
            format!("{what}{}:{count}", if me { "+me" } else { "" })
        }).collect();
        let value = words.join(",") + if per_task { ":per-task" } else { "" };
        let request = parsed(&value);
        prop_assert_eq!(&parsed(&request.to_string()), &request);
        for (_, geometry) in boards() {
            for item in &request.items {
                let Some(profile) = item.profile(&geometry) else { continue };
                let profile = &geometry.profiles()[profile];
                prop_assert!(item.suffix.is_empty() || profile.media());
            }
        }
    }
}
