//! The marked part of a node's Extra: whatever text stands there, the administrator's is kept.

use gpuos_core::health::{ExtraError, ExtraPart};
use proptest::prelude::*;

fn part(out: &[u8], degraded: &[u8]) -> ExtraPart {
    ExtraPart {
        out: out.to_vec(),
        degraded: degraded.to_vec(),
        pool_out: Vec::new(),
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
    assert_eq!(read, Ok(both.clone()));
    let pool = ExtraPart {
        pool_out: vec![4, 6],
        ..part(&[4], &[])
    };
    assert_eq!(pool.to_string(), "[gpuos:1 out=4 mig-out=4,6]");
    assert_eq!(
        ExtraPart::read(&pool.write_into("rack 7")),
        Ok(pool.clone())
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

#[test]
fn damaged_parts_are_errors_with_a_sentence() {
    for (text, error) in [
        ("[gpuos:1 out=2", ExtraError::Open),
        ("[gpuos:2 out=2]", ExtraError::Version("2".into())),
        ("[gpuos: out=2]", ExtraError::Version("out=2".into())),
        ("[gpuos:1 out=64]", ExtraError::Word("out=64".into())),
        ("[gpuos:1 out=-1]", ExtraError::Word("out=-1".into())),
        ("[gpuos:1 out=]", ExtraError::Word("out=".into())),
        ("[gpuos:1 out=1 out=2]", ExtraError::Word("out=2".into())),
        ("[gpuos:1 gone=1]", ExtraError::Word("gone=1".into())),
        ("[gpuos:1 out=1] [gpuos:1 out=2]", ExtraError::Twice),
    ] {
        assert_eq!(ExtraPart::read(text), Err(error.clone()), "{text}");
        assert!(error.to_string().contains("count as sound"), "{error}");
    }
}

proptest! {
    #[test]
    fn other_text_comes_back_as_it_was(
        text in "[ -~äß]{0,60}",
        out in prop::collection::btree_set(0u8..64, 0..9),
        degraded in prop::collection::btree_set(0u8..64, 0..9),
        pool in prop::collection::btree_set(0u8..64, 0..9),
    ) {
        prop_assume!(!text.contains("[gpuos:"));
        let degraded: Vec<u8> = degraded.difference(&out).copied().collect();
        let mut part = part(&out.into_iter().collect::<Vec<_>>(), &degraded);
        part.pool_out = pool.into_iter().collect();
        let written = part.write_into(&text);
        prop_assert_eq!(ExtraPart::read(&written), Ok(part.clone()));
        prop_assert_eq!(part.write_into(&written), written.clone());
        prop_assert_eq!(ExtraPart::default().write_into(&written), text);
    }

    #[test]
    fn any_text_is_read_and_written(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("[gpuos:".to_string()), Just("[gpuos:1 out=".to_string()), Just("[gp".to_string()),
                Just("uos:".to_string()), Just("]".to_string()), Just(" ".to_string()), "[0-9,= a-z\\[\\]]{0,6}", "\\PC{0,4}",
            ],
            0..9,
        ),
    ) {
        let text = pieces.concat();
        if let Err(error) = ExtraPart::read(&text) {
            prop_assert!(error.to_string().len() < 400);
        }
        let part = part(&[1], &[2]);
        prop_assert_eq!(ExtraPart::read(&part.write_into(&text)), Ok(part));
        prop_assert_eq!(ExtraPart::read(&ExtraPart::default().write_into(&text)), Ok(ExtraPart::default()));
    }
}
