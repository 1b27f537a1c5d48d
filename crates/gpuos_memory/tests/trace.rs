//! Traces as text.

use gpuos_memory::patterns::PATTERNS;
use gpuos_memory::trace::{Extent, MOST_EXTENTS, Touch, Trace};
use proptest::prelude::*;

#[test]
fn what_is_written_is_read() {
    for pattern in &PATTERNS {
        let mut trace = pattern.trace(3);
        trace.touches.truncate(2000);
        assert_eq!(
            Trace::read(&trace.to_string()),
            Ok(trace),
            "{}",
            pattern.name
        );
    }
}

#[test]
fn comments_and_empty_lines_are_nothing() {
    let text = "# made by hand\n\ngpuos memory trace 1\n  extent-mib 2\n\n r 1\n# then\nf 1 \n";
    let touches = vec![Touch::Read(Extent(1)), Touch::Free(Extent(1))];
    let trace = Trace {
        extent_mib: 2,
        touches,
    };
    assert_eq!(Trace::read(text), Ok(trace));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let head = "gpuos memory trace 1\nextent-mib 16\n";
    let wrong = |text: &str| Trace::read(text).expect_err("it is wrong").to_string();
    let touch =
        format!("is no touch; accepted are r N, w N and f N with an extent below {MOST_EXTENTS}");
    for (text, says) in [
        (
            String::new(),
            "line 1: the trace ends where gpuos memory trace 1 is expected".to_owned(),
        ),
        (
            "hello".into(),
            "line 1: a trace begins with \"gpuos memory trace 1\"".into(),
        ),
        (
            "gpuos memory trace 1\n".into(),
            "line 2: the trace ends where extent-mib N is expected".into(),
        ),
        (
            "gpuos memory trace 1\nextent-mib 65".into(),
            "line 2: the second line is the size of extents in MiB, from 2 to 64: extent-mib 16"
                .into(),
        ),
        (
            format!("{head}r 1\nx 2"),
            format!("line 4: \"x 2\" {touch}"),
        ),
        (format!("{head}r"), format!("line 3: \"r\" {touch}")),
        (format!("{head}r -1"), format!("line 3: \"r -1\" {touch}")),
        (
            format!("{head}w {MOST_EXTENTS}"),
            format!("line 3: \"w {MOST_EXTENTS}\" {touch}"),
        ),
        (
            format!("{head}f 99999999999999999999"),
            format!("line 3: \"f 99999999999999999999\" {touch}"),
        ),
    ] {
        assert_eq!(wrong(&text), says);
    }
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in "(gpuos memory trace 1\nextent-mib 2\n)?[rwf 0-9\n\\PC]{0,200}") {
        if let Ok(trace) = Trace::read(&text) {
            prop_assert_eq!(Trace::read(&trace.to_string()), Ok(trace));
        }
    }
}
