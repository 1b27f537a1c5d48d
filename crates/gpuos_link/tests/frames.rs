//! Frames of a session: what is opened is what was sealed, in the same order, or the session ends.

use gpuos_link::session::{
    FRAME_OVERHEAD, Fault, Frame, Kind, MAX_BODY, Opener, Sealer, Session, Settings,
};
use proptest::prelude::*;

use crate::support::{Side, place, sessions};

fn pair() -> (Sealer, Opener) {
    let (one, two) = sessions();
    (one.sealer, two.opener)
}

fn frame(sealer: &mut Sealer, kind: Kind, body: &[u8]) -> Vec<u8> {
    sealer.seal(kind, body).unwrap().with(body)
}

/// The frames that are opened, and the fault behind them.
fn open(opener: &mut Opener, mut bytes: &[u8]) -> (Vec<Frame>, Option<Fault>) {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        match opener.feed(bytes) {
            Ok((used, frame)) => {
                assert!(used > 0);
                frames.extend(frame);
                bytes = &bytes[used..];
            }
            Err(fault) => return (frames, Some(fault)),
        }
    }
    (frames, None)
}

#[test]
fn frames_that_are_lost_swapped_or_repeated_end_the_session() {
    let (mut sealer, _) = pair();
    let sent: Vec<Vec<u8>> = (0..4u8)
        .map(|n| frame(&mut sealer, Kind::Data, &[n; 5]))
        .collect();
    for (order, good) in [
        (&[0, 1, 2, 3][..], 4),
        (&[1], 0),
        (&[0, 2], 1),
        (&[1, 0], 0),
        (&[0, 2, 1], 1),
        (&[0, 0], 1),
        (&[0, 1, 0], 2),
        (&[0, 1, 2, 2], 3),
    ] {
        let (_, mut opener) = pair();
        let bytes: Vec<u8> = order
            .iter()
            .flat_map(|n: &usize| sent[*n].clone())
            .collect();
        let (frames, fault) = open(&mut opener, &bytes);
        assert_eq!(frames.len(), good, "{order:?}");
        assert!(
            frames
                .iter()
                .enumerate()
                .all(|(n, frame)| frame.body == [n as u8; 5])
        );
        assert_eq!(
            fault,
            (good < order.len()).then_some(Fault::Mac),
            "{order:?}"
        );
        // Nothing is taken after a fault.
        if good < order.len() {
            assert_eq!(opener.feed(&sent[good]), Err(Fault::Over));
        }
    }
}

#[test]
fn a_flipped_bit_gives_no_body() {
    let (mut sealer, _) = pair();
    let first = frame(&mut sealer, Kind::Data, b"first");
    let second = frame(&mut sealer, Kind::Close, b"");
    let good = [first, second].concat();
    let whole = open(&mut pair().1, &good);
    assert_eq!((whole.0.len(), whole.1), (2, None));
    for bit in 0..8 * good.len() {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (frames, fault) = open(&mut pair().1, &bad);
        let before = usize::from(bit / 8 >= FRAME_OVERHEAD + 5);
        assert_eq!(frames.len(), before, "bit {bit}");
        // A length that was made longer waits for the rest, which never holds.
        assert!(
            fault.is_some() || bit % 40 < 32 || bit / 8 >= FRAME_OVERHEAD,
            "bit {bit}"
        );
    }
}

#[test]
fn a_frame_does_not_come_back_to_its_sender() {
    let Session {
        mut sealer,
        mut opener,
        ..
    } = sessions().0;
    let bytes = frame(&mut sealer, Kind::Data, b"x");
    assert_eq!(open(&mut opener, &bytes), (vec![], Some(Fault::Mac)));
}

#[test]
fn the_last_frame_is_the_last_and_confirmations_are_for_the_handshake() {
    let (mut sealer, mut opener) = pair();
    let mut bytes = frame(&mut sealer, Kind::Alive, b"");
    bytes.extend(frame(&mut sealer, Kind::Close, b""));
    bytes.extend(frame(&mut sealer, Kind::Data, b"more"));
    let (frames, fault) = open(&mut opener, &bytes);
    let kinds: Vec<Kind> = frames.iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [Kind::Alive, Kind::Close]);
    assert_eq!(fault, Some(Fault::Over));
    let (mut sealer, mut opener) = pair();
    let bytes = frame(&mut sealer, Kind::Confirm, b"");
    assert_eq!(open(&mut opener, &bytes), (vec![], Some(Fault::Kind(0))));
    assert_eq!(opener.feed(b"x"), Err(Fault::Over));
}

#[test]
fn lengths_beyond_the_limit_cost_nothing() {
    for length in [MAX_BODY as u32 + 1, 1 << 30, u32::MAX] {
        let (_, mut opener) = pair();
        let [a, b, c, d] = length.to_le_bytes();
        let fault = opener.feed(&[a, b, c, d, 1]).unwrap_err();
        let told = Fault::Length {
            length: length.into(),
            limit: MAX_BODY,
        };
        assert_eq!(fault, told);
        assert!(opener.held() <= 16, "{}", opener.held());
    }
    // An honest length that is not kept holds what has come, twice at most.
    let (_, mut opener) = pair();
    let [a, b, c, d] = (MAX_BODY as u32).to_le_bytes();
    opener.feed(&[a, b, c, d, 1]).unwrap();
    let mut arrived = 5;
    for part in [1, 10, 1000, 3, 60_000] {
        opener.feed(&vec![0; part]).unwrap();
        arrived += part;
        assert!(opener.held() <= 2 * arrived + 16);
    }
    let (mut sealer, mut opener) = pair();
    let body = vec![7; MAX_BODY];
    let bytes = frame(&mut sealer, Kind::Data, &body);
    assert!(open(&mut opener, &bytes).0[0].body == body);
    assert_eq!(opener.held(), 0);
    let long = vec![0; MAX_BODY + 1];
    assert!(matches!(
        sealer.seal(Kind::Data, &long),
        Err(Fault::Length { .. })
    ));
}

#[test]
fn a_limit_of_the_caller_holds() {
    let settings = Settings {
        limit: 10,
        ..Settings::default()
    };
    let (mut caller, hello) = Side::initiator(1, settings);
    let mut called = Side::responder(place(1), 2, settings);
    let answer = called.hear(&hello);
    let confirm = caller.hear(&answer);
    let confirmed = called.hear(&confirm);
    caller.hear(&confirmed);
    let (mut one, mut two) = (caller.session.unwrap(), called.session.unwrap());
    assert_eq!(one.sealer.limit(), 10);
    assert!(one.sealer.seal(Kind::Data, &[0; 11]).is_err());
    let bytes = frame(&mut one.sealer, Kind::Data, &[1; 10]);
    assert_eq!(open(&mut two.opener, &bytes).0.len(), 1);
    assert!(two.opener.feed(&[11, 0, 0, 0, 1]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_sealed_is_opened_however_it_is_cut(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..12),
        cuts in prop::collection::vec(1usize..400, 1..20),
    ) {
        let (mut sealer, mut opener) = pair();
        let bytes: Vec<u8> = bodies.iter().flat_map(|body| frame(&mut sealer, Kind::Data, body)).collect();
        let (mut rest, mut opened) = (&bytes[..], Vec::new());
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (part, after) = rest.split_at((*cut).min(rest.len()));
            let (frames, fault) = open(&mut opener, part);
            prop_assert_eq!(fault, None);
            opened.extend(frames.into_iter().map(|frame| frame.body));
            rest = after;
        }
        prop_assert_eq!(opened, bodies);
    }

    #[test]
    fn any_bytes_give_no_frame(bytes: Vec<u8>, length in 0u32..80, kind: u8) {
        prop_assert!(open(&mut pair().1, &bytes).0.is_empty());
        let [a, b, c, d] = length.to_le_bytes();
        let framed = [&[a, b, c, d, kind][..], &bytes].concat();
        prop_assert!(open(&mut pair().1, &framed).0.is_empty());
    }
}
