//! Lines between programs and gpuosd.

use gpuos_memory::protocol::{Figures, FromProgram, Lines, MAX_LINE, Short, ToProgram, Uuid};
use proptest::prelude::*;

fn uuid() -> impl Strategy<Value = Uuid> {
    any::<[u8; 16]>().prop_map(Uuid)
}

fn from_program() -> impl Strategy<Value = FromProgram> {
    prop_oneof![
        any::<u32>().prop_map(|version| FromProgram::Hello { version }),
        (uuid(), any::<[u64; 2]>()).prop_map(|(gpu, [bytes, hbm])| FromProgram::Ask {
            gpu,
            bytes,
            hbm
        }),
        any::<bool>().prop_map(|parked| FromProgram::Return { parked }),
        Just(FromProgram::Idle),
        Just(FromProgram::Busy),
        any::<[u64; 3]>().prop_map(|[took_ms, moved, left]| FromProgram::Parked {
            took_ms,
            moved,
            left
        }),
        any::<[u64; 2]>().prop_map(|[took_ms, moved]| FromProgram::Back { took_ms, moved }),
        any::<[u64; 2]>().prop_map(|[down, up]| FromProgram::Moved { down, up }),
        Just(FromProgram::ReturnStowed),
        Just(FromProgram::NotParked),
        any::<u64>().prop_map(|bytes| FromProgram::Demoted { bytes }),
        any::<[u64; 7]>().prop_map(|[hot, warm, cold, fetched, evicted, pressed, held_ms]| {
            FromProgram::Figures(Figures {
                heat: [hot, warm, cold],
                fetched,
                evicted,
                pressed,
                held_ms,
            })
        }),
        Just(FromProgram::Pinned),
        Just(FromProgram::Bye),
    ]
}

fn to_program() -> impl Strategy<Value = ToProgram> {
    prop_oneof![
        (uuid(), any::<[u64; 3]>(), any::<bool>()).prop_map(|(gpu, [hbm, host, refuge], wait)| {
            ToProgram::Lease {
                gpu,
                hbm,
                host,
                refuge,
                wait,
            }
        }),
        "[ -~]{0,80}".prop_map(|why| ToProgram::Refused { why }),
        (uuid(), "[ -~]{0,80}").prop_map(|(gpu, why)| ToProgram::Without { gpu, why }),
        any::<u64>().prop_map(|deadline_ms| ToProgram::Park { deadline_ms }),
        Just(ToProgram::Turn),
        (any::<[u64; 2]>(), any::<bool>(), "/[a-z/ ]{0,100}").prop_map(
            |([deadline_ms, bytes], all, mover)| ToProgram::Stow {
                deadline_ms,
                bytes,
                all,
                mover
            }
        ),
        (any::<[u64; 2]>(), "/[a-z/ ]{0,100}").prop_map(|([deadline_ms, bytes], mover)| {
            ToProgram::Demote {
                deadline_ms,
                bytes,
                mover,
            }
        }),
        prop_oneof![Just(Short::Calm), Just(Short::Node), Just(Short::Job)]
            .prop_map(ToProgram::Pressure),
        any::<u64>().prop_map(|deadline_ms| ToProgram::Trim { deadline_ms }),
        (uuid(), any::<u64>()).prop_map(|(gpu, rate)| ToProgram::Budget { gpu, rate }),
        "[ -~]{0,80}".prop_map(|text| ToProgram::Note { text }),
    ]
}

#[test]
fn a_uuid_is_read_as_nvidia_writes_it() {
    let bare = "0123456789abcdef0123456789abcdef";
    let uuid = Uuid::parse("GPU-01234567-89ab-cdef-0123-456789abcdef").unwrap();
    assert_eq!(uuid.to_string(), bare);
    assert_eq!(Uuid::parse(bare), Some(uuid));
    let long = format!("{bare}0");
    for bad in [
        "",
        "GPU-",
        "MIG-0123",
        &bare[1..],
        &long,
        &bare.replace('a', "g"),
    ] {
        assert_eq!(Uuid::parse(bad), None, "{bad}");
    }
}

#[test]
fn what_is_nearly_a_message_is_none() {
    let long = format!("refused {}", "x".repeat(MAX_LINE));
    let bare = "0123456789abcdef0123456789abcdef";
    for bad in [
        "",
        " idle",
        "idle ",
        "IDLE",
        "idle 1",
        "hello",
        "hello -1",
        "hello +1",
        "hello 4294967296",
        "parked 1 2",
        "parked 1 2 x",
        "ask 01 5 5",
        &format!("ask {bare} 5"),
        "back 1  2",
        "back 18446744073709551616 0",
        "idle\0",
        "idle\r",
        "return",
        "return home",
        "pressure",
        "pressure house",
        "trim -1",
        "demoted",
        "budget 01 5",
        "figures 1 2 3 4 5 6",
        "figures 1 2 3 4 5 6 7 8",
        "figures 1 2 3 4 5 6 -7",
        &format!("lease {bare} 1 2 turn"),
        &format!("lease {bare} 1 2 3 now"),
        &long,
    ] {
        assert!(FromProgram::parse(bad.as_bytes()).is_err(), "{bad:?}");
        assert!(ToProgram::parse(bad.as_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn a_sentence_stays_one_line_of_bounded_length() {
    let why = format!("a\nturn\n\u{1b}[2J{}", "ü".repeat(MAX_LINE));
    for line in [
        ToProgram::Refused { why: why.clone() }.line(),
        ToProgram::Note { text: why.clone() }.line(),
    ] {
        assert!(line.len() <= MAX_LINE && line.ends_with('\n'), "{line}");
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains('\u{1b}'));
        assert!(ToProgram::parse(line.as_bytes()).is_ok());
    }
}

proptest! {
    #[test]
    fn a_message_comes_back_from_its_line(from in from_program(), to in to_program()) {
        let (a, b) = (from.line(), to.line());
        prop_assert!(a.len() <= MAX_LINE && b.len() <= MAX_LINE);
        prop_assert_eq!(FromProgram::parse(a.as_bytes()), Ok(from));
        prop_assert_eq!(ToProgram::parse(b.as_bytes()), Ok(to));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = FromProgram::parse(&bytes);
        let _ = ToProgram::parse(&bytes);
        let _ = Uuid::parse(&String::from_utf8_lossy(&bytes));
    }

    /// However a stream is cut, its lines are the same, and what is held stays small.
    #[test]
    fn lines_are_the_same_however_they_come(all in prop::collection::vec(from_program(), 0..20), cuts in prop::collection::vec(1..50usize, 1..20)) {
        let text: String = all.iter().map(FromProgram::line).collect();
        let (mut lines, mut got, mut rest) = (Lines::default(), Vec::new(), text.as_bytes());
        for size in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*size).min(rest.len()));
            lines.push(now);
            rest = later;
            while let Some(line) = lines.next_line().unwrap() {
                got.push(FromProgram::parse(&line).unwrap());
            }
        }
        prop_assert_eq!(got, all);
    }
}

#[test]
fn a_line_without_an_end_ends_the_connection() {
    let mut lines = Lines::default();
    lines.push(&vec![b'x'; MAX_LINE]);
    assert_eq!(lines.next_line(), Ok(None));
    lines.push(b"x");
    assert!(lines.next_line().is_err());
}
