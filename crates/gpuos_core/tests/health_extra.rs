//! The marked part of a node's Extra: whatever text stands there, the administrator's is kept.

use gpuos_core::health::{ExtraError, ExtraPart};
use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use proptest::prelude::*;

fn gres(gpus: &[u8]) -> Vec<GresGpu> {
    let gpus = gpus.iter().map(|gpu| GresGpu::try_from(*gpu));
    gpus.map(|gpu| gpu.expect("a GPU")).collect()
}

fn nvml(gpus: impl IntoIterator<Item = u8>) -> Vec<NvmlIndex> {
    let gpus = gpus.into_iter().map(NvmlIndex::try_from);
    gpus.map(|gpu| gpu.expect("a GPU")).collect()
}

fn part(out: &[u8], degraded: &[u8]) -> ExtraPart {
    ExtraPart {
        out: gres(out),
        degraded: gres(degraded),
        ..ExtraPart::default()
    }
}

#[test]
fn the_form_is_as_documented() {
    let both = part(&[2, 5], &[3]);
    assert_eq!(both.to_string(), "[gpuos:1 out=2,5 degraded=3]");
    assert_eq!(part(&[], &[3]).to_string(), "[gpuos:1 degraded=3]");
    assert_eq!(part(&[], &[]).to_string(), "");
    assert_eq!(
        both.write_into("rack 7"),
        "rack 7 [gpuos:1 out=2,5 degraded=3]"
    );
    let read = ExtraPart::read("rack 7 [gpuos:1 out=5,2,5 degraded=3,2] fan");
    assert_eq!(read, (both.clone(), None));
    let pool = ExtraPart {
        pool_out: nvml([4, 6]),
        ..part(&[4], &[])
    };
    assert_eq!(pool.to_string(), "[gpuos:1 out=4 mig-out=4,6]");
    assert_eq!(
        ExtraPart::read(&pool.write_into("rack 7")),
        (pool.clone(), None)
    );
    assert_eq!(
        part(&[], &[]).write_into("a [gpuos:1 mig-out=4,"),
        "a",
        "what was cut off goes"
    );
    let moved = part(&[0], &[]).write_into("rack 7 [gpuos:1 out=2] fan");
    assert_eq!(moved, "rack 7 fan [gpuos:1 out=0]");
    assert_eq!(part(&[], &[]).write_into("[gpuos:1 out=2]"), "");
    // Whatever came of a part that was cut off is put right.
    assert_eq!(
        both.write_into("a [gpuos:1 out=2,"),
        "a [gpuos:1 out=2,5 degraded=3]"
    );
}

fn all() -> Vec<GresGpu> {
    (0..64).filter_map(GresGpu::new).collect()
}

/// Which GPUs a damaged word named is not known, so it is all that it may have named: a GPU that is out gets no job.
#[test]
fn what_is_damaged_counts_as_out_and_is_said() {
    let out = |word: &str| Some(ExtraError::Out(word.into()));
    let version = |word: &str| Some(ExtraError::Version(word.into()));
    for (text, error, gpus, pool) in [
        ("[gpuos:1 out=2", Some(ExtraError::Open), 64, 64),
        (
            "[gpuos:1 out=2 [gpuos:1 out=3]",
            Some(ExtraError::Open),
            64,
            64,
        ),
        ("[gpuos:2 out=2]", version("2"), 64, 64),
        ("[gpuos: out=2]", version("out=2"), 64, 64),
        ("[gpuos:1 out=64]", out("out=64"), 64, 0),
        ("[gpuos:1 out=-1 mig-out=1]", out("out=-1"), 64, 1),
        ("[gpuos:1 out=]", out("out="), 64, 0),
        ("[gpuos:1 out]", out("out"), 64, 0),
        ("[gpuos:1 out=3,+4 mig-out=x]", out("out=3,+4"), 64, 64),
        (
            "[gpuos:1 degraded=x out=3 mig-out=1,]",
            out("mig-out=1,"),
            1,
            64,
        ),
        ("[gpuos:1 later out=1 out=2,x]", out("out=2,x"), 64, 0),
    ] {
        let (read, wrong) = ExtraPart::read(text);
        assert_eq!(wrong, error, "{text}");
        assert_eq!(
            (read.out.len(), read.pool_out.len()),
            (gpus, pool),
            "{text}"
        );
        let said = wrong.expect("said").to_string();
        assert!(
            said.contains("count as out of service until gpuosd"),
            "{said}"
        );
        assert_eq!(
            part(&[3], &[]).write_into(text).matches("[gpuos:").count(),
            1
        );
        let written = part(&[3], &[]).write_into(text);
        assert!(!part(&[], &[]).write_into(&written).contains("out"));
    }
    // One that is only degraded serves anyway.
    let (read, wrong) = ExtraPart::read("[gpuos:1 out=2 degraded=3,x]");
    assert_eq!(read, part(&[2], &[3]));
    let said = wrong.expect("said").to_string();
    assert!(said.contains("count as degraded"), "{said}");
    // Whoever says that a GPU is out is believed.
    let two = "[gpuos:1 out=1 degraded=2] [gpuos:1 out=2 out=7]";
    assert_eq!(ExtraPart::read(two), (part(&[1, 2, 7], &[]), None));
    assert_eq!(part(&[4], &[]).write_into(two), "[gpuos:1 out=4]");
    assert_eq!(all(), ExtraPart::read("[gpuos:1 out=x]").0.out);
}

#[test]
fn words_that_are_not_known_are_skipped_and_keep_their_place() {
    let text = "rack 7 [gpuos:1 asleep=4 out=2 zone=b degraded=3 quiet] fan";
    assert_eq!(ExtraPart::read(text), (part(&[2], &[3]), None));
    assert_eq!(
        ExtraPart::unknown(text).as_deref(),
        Some("asleep=4 zone=b quiet")
    );
    assert_eq!(ExtraPart::unknown("zone=b [gpuos:1 out=2]"), None);
    assert_eq!(
        part(&[2, 5], &[]).write_into(text),
        "rack 7 fan [gpuos:1 asleep=4 out=2,5 zone=b quiet]"
    );
    let well = part(&[], &[]).write_into(text);
    assert_eq!(well, "rack 7 fan [gpuos:1 asleep=4 zone=b quiet]");
    assert_eq!(
        part(&[1], &[]).write_into(&well),
        "rack 7 fan [gpuos:1 out=1 asleep=4 zone=b quiet]"
    );
    // A damaged word beside them goes, they stay.
    assert_eq!(
        part(&[1], &[]).write_into("[gpuos:1 a=1 out=x b]"),
        "[gpuos:1 a=1 out=1 b]"
    );
}

#[test]
fn jobs_whose_checkpoints_a_node_holds_stand_beside_its_gpus() {
    let holds = |jobs: &[(u32, u32)]| ExtraPart {
        held: jobs.iter().copied().collect(),
        ..part(&[2], &[])
    };
    let both = holds(&[(12, 3), (900, 41)]);
    assert_eq!(both.to_string(), "[gpuos:1 out=2 ckpt=12:3,900:41]");
    let text = "rack 7 [gpuos:1 ckpt=12:3,x,900:41 out=2] fan";
    let cut = |part: ExtraPart| ExtraPart {
        held_more: true,
        ..part
    };
    // What of a list cannot be read may have named others.
    assert_eq!(ExtraPart::read(text), (cut(both.clone()), None));
    assert_eq!(ExtraPart::unknown(text), None);
    // Garbage in it is nothing that a GPU is taken out of service for.
    for garbage in ["ckpt", "ckpt=", "ckpt=x", "ckpt=0:1", "ckpt=-1:9999999999"] {
        let text = format!("[gpuos:1 {garbage} out=2]");
        let (read, wrong) = ExtraPart::read(&text);
        assert_eq!((cut(read), wrong), (cut(part(&[2], &[])), None), "{text}");
        assert_eq!(both.write_into(&text).matches("ckpt").count(), 1);
        assert_eq!(part(&[2], &[]).write_into(&text), "[gpuos:1 out=2]");
    }
    // What cuts a text cuts its end: GPUs that are out come first, old words stay where they are.
    assert_eq!(
        both.write_into("a [gpuos:1 zone=b ckpt=1:1]"),
        "a [gpuos:1 out=2 zone=b ckpt=12:3,900:41]"
    );
    assert_eq!(
        both.write_into("a [gpuos:1 zone=b]"),
        "a [gpuos:1 out=2 zone=b ckpt=12:3,900:41]"
    );
    assert_eq!(
        both.write_into("a [gpuos:1 out=2 ckpt=12:3,9"),
        "a [gpuos:1 out=2 ckpt=12:3,900:41]"
    );
    assert!(holds(&[(1, 1)]).has_same_gpus(&both) && holds(&[(1, 1)]) != both);
    let many = (1..100).map(|job| (job, job)).collect();
    let largest = ExtraPart::largest_held(&many);
    assert_eq!(
        (largest.len(), largest.first_key_value()),
        (16, Some((&84, &84)))
    );
}

#[test]
fn a_node_is_short_of_host_memory_by_one_word_alone() {
    let short = ExtraPart {
        short: true,
        ..part(&[2], &[])
    };
    assert_eq!(short.to_string(), "[gpuos:1 out=2 short=host]");
    assert_eq!(
        ExtraPart::read("rack 7 [gpuos:1 short=host out=2] fan"),
        (short.clone(), None)
    );
    for (text, says) in [
        ("short=host [gpuos:1 out=2]", false),
        ("[gpuos:1 short out=2]", false),
        ("[gpuos:1 out=2 short=]", false),
        ("[gpuos:1 out=2 short=nvme]", false),
        ("[gpuos:1 out=2 short=host,nvme]", false),
        ("[gpuos:1 out=2 short=HOST xshort=host]", false),
        ("[gpuos:1 out=2 short=x short=host]", true),
        ("[gpuos:1 out=2] [gpuos:1 short=host]", true),
    ] {
        let (read, wrong) = ExtraPart::read(text);
        assert_eq!((read.short, wrong), (says, None), "{text}");
        assert_eq!(read.out, gres(&[2]), "nothing is out for it: {text}");
        for written in [&short, &part(&[2], &[])] {
            let now = written.write_into(text);
            assert_eq!(ExtraPart::read(&now), (written.clone(), None), "{now}");
        }
    }
    assert_eq!(ExtraPart::unknown("[gpuos:1 short=x]"), None);
    // What was cut off goes, and other text stays.
    for cut in ["short=host", "short=host ", "short=ho", "short="] {
        let text = format!("a [gpuos:1 out=2 {cut}");
        let now = short.write_into(&text);
        assert!(now.starts_with("a "), "{now}");
        assert!(now.ends_with("[gpuos:1 out=2 short=host]"), "{now}");
    }
    assert_eq!(part(&[], &[]).write_into("a [gpuos:1 short=host"), "a");
    assert!(short.has_same_gpus(&part(&[2], &[])) && short != part(&[2], &[]));
}

/// A word of the part, with what it says is out and out of the pool.
fn word() -> impl Strategy<Value = (String, Vec<u8>, Vec<u8>)> {
    let list = prop::collection::vec(0u8..64, 1..5);
    let text = |list: &[u8]| list.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    let damage = prop_oneof![Just(",x"), Just(","), Just(",99"), Just(",1-2"), Just("=")];
    prop_oneof![
        list.clone()
            .prop_map(move |gpus| (format!("out={}", text(&gpus)), gpus, vec![])),
        list.clone()
            .prop_map(move |gpus| (format!("mig-out={}", text(&gpus)), vec![], gpus)),
        list.clone()
            .prop_map(move |gpus| (format!("degraded={}", text(&gpus)), vec![], vec![])),
        (list.clone(), damage.clone()).prop_map(move |(gpus, damage)| (
            format!("out={}{damage}", text(&gpus)),
            (0..64).collect(),
            vec![]
        )),
        (list, damage).prop_map(move |(gpus, damage)| (
            format!("mig-out={}{damage}", text(&gpus)),
            vec![],
            (0..64).collect()
        )),
        "[a-zA-Z_.-]{1,8}(=[ -Z^-~]{0,6})?".prop_map(|word| (
            word.replace(' ', "_"),
            vec![],
            vec![]
        )),
    ]
    .prop_filter(
        "an unknown word is none that is known",
        |(word, out, pool)| {
            let key = word.split('=').next().unwrap_or_default();
            !(out.is_empty() && pool.is_empty() && ["out", "mig-out"].contains(&key))
        },
    )
}

fn is_known(word: &str) -> bool {
    let key = word.split('=').next().unwrap_or_default();
    ["out", "degraded", "mig-out", "short", "ckpt"].contains(&key)
}

fn unknown_of(text: &str) -> Vec<String> {
    let Some((_, body)) = text.split_once("[gpuos:1") else {
        return Vec::new();
    };
    let body = body.split(']').next().unwrap_or_default();
    let words = body.split(' ').filter(|word| !word.is_empty());
    words
        .filter(|word| !is_known(word))
        .map(str::to_string)
        .collect()
}

proptest! {
    #[test]
    fn other_text_comes_back_as_it_was(
        text in "[ -~äß]{0,60}",
        out in prop::collection::btree_set(0u8..64, 0..9),
        degraded in prop::collection::btree_set(0u8..64, 0..9),
        pool in prop::collection::btree_set(0u8..64, 0..9),
        held in prop::collection::btree_map(1u32.., 1u32.., 0..16),
        (short, more) in any::<(bool, bool)>(),
    ) {
        prop_assume!(!text.contains("[gpuos:"));
        let degraded: Vec<u8> = degraded.difference(&out).copied().collect();
        let mut part = part(&out.into_iter().collect::<Vec<_>>(), &degraded);
        part.pool_out = nvml(pool);
        part.held_more = more && !held.is_empty();
        part.held = held;
        part.short = short;
        let written = part.write_into(&text);
        prop_assert_eq!(ExtraPart::read(&written), (part.clone(), None));
        prop_assert_eq!(part.write_into(&written), written.clone());
        prop_assert_eq!(ExtraPart::default().write_into(&written), text);
    }

    #[test]
    fn any_text_is_read_and_written(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("[gpuos:".to_string()), Just("[gpuos:1 out=".to_string()), Just(" short=host".to_string()), Just("[gp".to_string()),
                Just("uos:".to_string()), Just("]".to_string()), Just(" ".to_string()), "[0-9,= a-z\\[\\]]{0,6}", "\\PC{0,4}",
            ],
            0..9,
        ),
    ) {
        let text = pieces.concat();
        let (read, wrong) = ExtraPart::read(&text);
        if let Some(error) = wrong {
            prop_assert!(error.to_string().len() < 400);
        }
        prop_assert!(!read.short || text.contains("short=host"));
        let part = part(&[1], &[2]);
        let written = part.write_into(&text);
        prop_assert_eq!(part.write_into(&written), written.clone());
        let well = ExtraPart::default().write_into(&written);
        prop_assert_eq!(ExtraPart::unknown(&well), ExtraPart::unknown(&written));
        prop_assert_eq!(ExtraPart::read(&part.write_into(&text)), (part, None));
        prop_assert_eq!(ExtraPart::read(&ExtraPart::default().write_into(&text)), Default::default());
    }

    /// Whatever stands beside them: what known words have out is out, and unknown words live through any writing.
    #[test]
    fn any_mix_of_words_is_never_less_than_the_known_ones_say(
        words in prop::collection::vec(word(), 0..9),
        out in prop::collection::btree_set(0u8..64, 0..4),
    ) {
        let said: Vec<&str> = words.iter().map(|(word, ..)| &word[..]).collect();
        let text = format!("rack 7 [gpuos:1 {}] fan", said.join(" "));
        let (read, _) = ExtraPart::read(&text);
        for (word, out, pool) in &words {
            let (out, pool) = (gres(out), nvml(pool.iter().copied()));
            prop_assert!(out.iter().all(|gpu| read.out.contains(gpu)), "{} in {}", word, text);
            prop_assert!(pool.iter().all(|gpu| read.pool_out.contains(gpu)), "{} in {}", word, text);
        }
        let unknown = unknown_of(&text);
        let part = part(&out.into_iter().collect::<Vec<_>>(), &[]);
        let written = part.write_into(&text);
        prop_assert_eq!(ExtraPart::read(&written), (part.clone(), None));
        prop_assert_eq!(unknown_of(&written), unknown.clone());
        prop_assert_eq!(part.write_into(&written), written.clone());
        let well = ExtraPart::default().write_into(&written);
        prop_assert_eq!(ExtraPart::read(&well), Default::default());
        prop_assert_eq!(unknown_of(&well), unknown);
        prop_assert!(written.starts_with("rack 7 fan") && well.starts_with("rack 7 fan"));
        prop_assert!(written.len() <= text.len() + part.to_string().len() + 1);
    }
}
