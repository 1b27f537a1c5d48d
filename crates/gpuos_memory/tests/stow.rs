//! Lines between programs and gpuos_mover, and what a program may say.

use gpuos_memory::stow::{
    Digest, FromProgram, MOST_SLOTS, PAGE, PIECE, Session, ToProgram, Violation,
};
use proptest::prelude::*;

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest)
}

fn from_program() -> impl Strategy<Value = FromProgram> {
    prop_oneof![
        any::<[u32; 2]>().prop_map(|[version, slots]| FromProgram::Hello { version, slots }),
        (any::<u32>(), any::<[u64; 2]>()).prop_map(|(slot, [at, bytes])| FromProgram::Put {
            slot,
            at,
            bytes
        }),
        (any::<u32>(), any::<[u64; 2]>(), digest()).prop_map(|(slot, [at, bytes], digest)| {
            FromProgram::Get {
                slot,
                at,
                bytes,
                digest,
            }
        }),
        Just(FromProgram::Drop),
    ]
}

fn to_program() -> impl Strategy<Value = ToProgram> {
    prop_oneof![
        any::<u64>().prop_map(|limit| ToProgram::Ready { limit }),
        "[ -~]{0,80}".prop_map(|why| ToProgram::Refused { why }),
        (any::<u32>(), digest()).prop_map(|(slot, digest)| ToProgram::Done { slot, digest }),
        (any::<u32>(), "[ -~]{0,80}").prop_map(|(slot, why)| ToProgram::Failed { slot, why }),
        Just(ToProgram::Busy),
        Just(ToProgram::Dropped),
    ]
}

const MIB: u64 = 1 << 20;

fn put(slot: u32, at: u64, bytes: u64) -> FromProgram {
    FromProgram::Put { slot, at, bytes }
}

#[test]
fn a_slot_is_used_by_one_at_a_time_and_pieces_stay_within_the_limit() {
    let mut session = Session::new(2, 8 * MIB, 0).unwrap();
    for (said, why) in [
        (put(2, 0, PIECE), Violation::Slot),
        (put(u32::MAX, 0, PIECE), Violation::Slot),
        (put(0, 0, 0), Violation::Length),
        (put(0, 0, PIECE + PAGE), Violation::Length),
        (put(0, 0, PAGE + 1), Violation::Length),
        (put(0, 1, PAGE), Violation::Place),
        (put(0, 8 * MIB, PAGE), Violation::Place),
        (put(0, u64::MAX - 4095, PIECE), Violation::Place),
        (put(0, 6 * MIB, PIECE), Violation::Place),
    ] {
        assert_eq!(session.take(&said), Err(why), "{said:?}");
    }
    assert_eq!(session.take(&put(0, 4 * MIB, PIECE)), Ok(()));
    assert_eq!(session.take(&put(0, 0, PIECE)), Err(Violation::Slot));
    assert_eq!(session.take(&FromProgram::Drop), Err(Violation::Busy));
    session.done(0);
    assert_eq!(session.take(&put(0, 0, PIECE)), Ok(()));
    session.done(0);
    session.done(77);
    assert_eq!(session.take(&FromProgram::Drop), Ok(()));
}

#[test]
fn who_has_lost_his_lease_may_still_get_what_he_has() {
    let get = FromProgram::Get {
        slot: 0,
        at: 0,
        bytes: PIECE,
        digest: Digest([0; 32]),
    };
    let mut session = Session::new(1, 0, PIECE).unwrap();
    assert_eq!(session.take(&put(0, 0, PAGE)), Err(Violation::Place));
    assert_eq!(session.take(&get), Ok(()));
    for slots in [0, MOST_SLOTS + 1, u32::MAX] {
        assert!(Session::new(slots, MIB, MIB).is_none());
    }
}

proptest! {
    #[test]
    fn what_a_program_says_is_read_as_it_was_said(said in from_program()) {
        prop_assert_eq!(FromProgram::parse(said.line().as_bytes()), Ok(said));
    }

    #[test]
    fn what_the_mover_says_is_read_as_it_was_said(said in to_program()) {
        prop_assert_eq!(ToProgram::parse(said.line().as_bytes()), Ok(said));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        let _ = (FromProgram::parse(&bytes), ToProgram::parse(&bytes));
    }

    #[test]
    fn whatever_is_taken_is_within_its_bounds(
        said in prop::collection::vec((0..12_u32, 0..40_u64, 0..1100_u64, any::<bool>()), 1..60),
    ) {
        let limit = 20 * PAGE * 512;
        let mut session = Session::new(8, limit, limit).unwrap();
        let mut busy = [false; 8];
        for (slot, at, pages, done) in said {
            let (at, bytes) = (at * PAGE * 512, pages * PAGE);
            if session.take(&put(slot, at, bytes)).is_ok() {
                prop_assert!(!busy[slot as usize]);
                prop_assert!(bytes <= PIECE && at + bytes <= limit);
                busy[slot as usize] = true;
            }
            if done && slot < 8 {
                session.done(slot);
                busy[slot as usize] = false;
            }
        }
    }
}
