//! Rosters: nodes with data keep their places, others take those of nodes that are gone.

use std::collections::BTreeSet;

use gpuos_checkpoint::ids::{CheckpointId, NodeIndex};
use gpuos_checkpoint::sets::{NodeDomains, Scheme};
use gpuos_mover::roster::{Claim, Plain, Roster, draw};
use proptest::prelude::*;

type Seat = (Option<Claim>, NodeDomains);

fn scheme(text: &str) -> Scheme {
    text.parse().unwrap()
}

fn seats(domains: &[&str]) -> Vec<Seat> {
    let seat = |label: &&str| (None, NodeDomains::of([("rack", *label)]));
    domains.iter().map(seat).collect()
}

fn indices(roster: &Roster) -> Vec<u16> {
    roster.index_of_seat.iter().map(|index| index.0).collect()
}

fn sets(roster: &Roster) -> Vec<Vec<u16>> {
    let set = |set: &gpuos_checkpoint::sets::Set| set.members.iter().map(|node| node.0).collect();
    roster.sets.iter().map(set).collect()
}

fn claim(index: u16, nodes: u16, set: &[u16], parity: u16, number: u32) -> Option<Claim> {
    Some(Claim {
        index: NodeIndex(index),
        nodes,
        set: set.iter().copied().map(NodeIndex).collect(),
        parity,
        newest: CheckpointId { number, attempt: 1 },
    })
}

/// The seats of a job that made checkpoint 4 with this roster.
fn claimed(roster: &Roster) -> Vec<Seat> {
    let nodes = roster.index_of_seat.len() as u16;
    let claim = |index: &NodeIndex| {
        let set = roster
            .sets
            .iter()
            .find(|set| set.members.contains(index))
            .unwrap();
        let claim = Claim {
            index: *index,
            nodes,
            set: set.members.clone(),
            parity: set.parity.into(),
            newest: CheckpointId {
                number: 4,
                attempt: 1,
            },
        };
        (Some(claim), NodeDomains::default())
    };
    roster.index_of_seat.iter().map(claim).collect()
}

#[test]
fn without_checkpoints_the_index_is_the_seat() {
    let roster = draw(&seats(&["a", "a", "b", "b"]), scheme("partner")).unwrap();
    assert_eq!(indices(&roster), [0, 1, 2, 3]);
    for set in sets(&roster) {
        assert!(set[0] < 2 && set[1] >= 2, "racks are kept apart: {set:?}");
    }
    assert!(roster.notes.is_empty());
}

#[test]
fn nodes_with_data_keep_their_index_wherever_they_sit() {
    let first = draw(&seats(&["a", "b", "c", "d", "e", "f"]), scheme("xor:3")).unwrap();
    let mut seats = claimed(&first);
    seats.reverse();
    seats[1] = (None, NodeDomains::default());
    seats[4] = (None, NodeDomains::default());
    let roster = draw(&seats, scheme("xor:3")).unwrap();
    // Indices 1 and 4 are free, and are taken in the order of seats.
    assert_eq!(indices(&roster), [5, 1, 3, 2, 4, 0]);
    assert_eq!(roster.sets, first.sets);
    assert!(roster.notes.is_empty());
}

#[test]
fn a_set_that_is_lost_as_a_whole_is_arranged_anew() {
    let first = draw(&seats(&["a", "a", "b", "b"]), scheme("partner")).unwrap();
    let mut seats = claimed(&first);
    for lost in &first.sets[1].members {
        seats[usize::from(lost.0)].0 = None;
    }
    let roster = draw(&seats, scheme("partner")).unwrap();
    assert_eq!(roster.sets, first.sets);
    assert_eq!(indices(&roster), [0, 1, 2, 3]);
}

#[test]
fn of_two_claims_to_an_index_the_newer_one_holds() {
    let seats: Vec<Seat> = [claim(1, 2, &[0, 1], 1, 3), claim(1, 2, &[0, 1], 1, 7)]
        .map(|claim| (claim, NodeDomains::default()))
        .into();
    let roster = draw(&seats, scheme("partner")).unwrap();
    assert_eq!(indices(&roster), [0, 1]);
    let [note] = &roster.notes[..] else {
        panic!("{:?}", roster.notes);
    };
    assert!(
        note.contains("seats 1 and 0 both have parts of node 1"),
        "{note}"
    );
}

#[test]
fn another_number_of_nodes_is_an_error_that_says_how_many() {
    let first = draw(&seats(&["a", "b", "c", "d"]), scheme("partner")).unwrap();
    let mut seats = claimed(&first);
    seats.pop();
    let why = draw(&seats, scheme("partner")).unwrap_err();
    assert!(
        why.contains("were made on 4 nodes, and it has 3 now; nothing was removed"),
        "{why}"
    );
}

#[test]
fn a_scheme_that_needs_more_nodes_is_an_error() {
    let why = draw(&seats(&["a", "b", "c", "d"]), scheme("rs:6+2")).unwrap_err();
    assert!(
        why.contains("l2=rs:6+2 needs at least 8 nodes, and the job has 4"),
        "{why}"
    );
}

#[test]
fn domains_that_cannot_be_kept_apart_are_no_error() {
    let roster = draw(&seats(&["a", "a", "a", "b"]), scheme("partner")).unwrap();
    assert_eq!(roster.sets.len(), 2);
    let [note] = &roster.notes[..] else {
        panic!("{:?}", roster.notes);
    };
    assert!(
        note.contains("may fail together") && note.contains("rack domain a"),
        "{note}"
    );
}

#[test]
fn sets_stay_as_they_were_when_another_scheme_is_asked_for() {
    let first = draw(&seats(&["a", "b", "c", "d"]), scheme("partner")).unwrap();
    let roster = draw(&claimed(&first), scheme("rs:2+2")).unwrap();
    assert_eq!(roster.sets, first.sets);
    assert!(
        roster.notes[0].contains("not as l2=rs:2+2 asks for"),
        "{:?}",
        roster.notes
    );
}

#[test]
fn claims_that_contradict_each_other_give_way_to_the_newest() {
    let plain = NodeDomains::default();
    let seats: Vec<Seat> = [
        claim(0, 4, &[0, 1], 1, 9),
        claim(2, 4, &[1, 2], 1, 8),
        claim(3, 4, &[3], 1, 8),
        claim(9, 4, &[9, 3], 1, 8),
    ]
    .map(|claim| (claim, plain.clone()))
    .into();
    let roster = draw(&seats, scheme("partner")).unwrap();
    assert_eq!(indices(&roster), [0, 2, 1, 3]);
    assert_eq!(sets(&roster), [[0, 1], [2, 3]]);
    assert_eq!(roster.notes.len(), 3, "{:?}", roster.notes);
}

fn claims(nodes: u16) -> impl Strategy<Value = Vec<Seat>> {
    let index = 0..nodes + 2;
    let set = prop::collection::vec(index.clone(), 0..5);
    let number = prop_oneof![9 => Just(nodes), 1 => 0..12u16];
    let one = (index, number, set, 0..4u16, 0..5u32, any::<bool>());
    let claim = one.prop_map(|(index, nodes, mut set, parity, number, own)| {
        if own {
            set.push(index);
        }
        claim(index, nodes, &set, parity, number)
    });
    let label = prop_oneof![Just(""), Just("a"), Just("b"), Just("c")];
    let seat = (prop::option::of(claim), label);
    let seat = seat.prop_map(|(claim, label)| {
        let claim = claim.flatten();
        (claim, NodeDomains::of([("rack", label)]))
    });
    prop::collection::vec(seat, usize::from(nodes))
}

fn schemes() -> impl Strategy<Value = Scheme> {
    let texts = ["single", "partner", "xor:3", "rs:2+2", "rs:6+2"];
    prop::sample::select(texts.to_vec()).prop_map(scheme)
}

fn is_sound(roster: &Roster, nodes: u16) {
    let mut indices = indices(roster);
    indices.sort_unstable();
    assert!(indices.into_iter().eq(0..nodes));
    let mut members: Vec<u16> = sets(roster).concat();
    members.sort_unstable();
    assert!(members.into_iter().eq(0..nodes));
    assert!(roster.sets.iter().all(|set| set.geometry().is_some()));
    let plain = Plain::from(roster.clone());
    assert_eq!(Roster::try_from(plain).as_ref(), Ok(roster));
    let bytes = postcard::to_extend(roster, Vec::new()).unwrap();
    assert_eq!(&postcard::from_bytes::<Roster>(&bytes).unwrap(), roster);
}

proptest! {
    #[test]
    fn whatever_is_claimed_each_index_is_given_once(seats in (0..9u16).prop_flat_map(claims), scheme in schemes()) {
        if let Ok(roster) = draw(&seats, scheme) {
            is_sound(&roster, seats.len() as u16);
            prop_assert_eq!(draw(&seats, scheme), Ok(roster));
        }
    }

    #[test]
    fn what_is_left_keeps_its_place(
        nodes in 2..40u16,
        scheme in schemes(),
        lost in prop::collection::btree_set(0..40usize, 0..20),
        order in any::<u64>(),
    ) {
        let labels = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let all: Vec<&str> = labels.into_iter().cycle().take(nodes.into()).collect();
        let Ok(first) = draw(&seats(&all), scheme) else {
            return Ok(());
        };
        let mut seats = claimed(&first);
        seats.sort_by_key(|(claim, _)| u64::from(claim.as_ref().unwrap().index.0).wrapping_mul(order | 1) % 1009);
        for seat in &lost {
            if let Some((claim, _)) = seats.get_mut(*seat) {
                *claim = None;
            }
        }
        let roster = draw(&seats, scheme).unwrap();
        is_sound(&roster, nodes);
        for ((claim, _), index) in seats.iter().zip(&roster.index_of_seat) {
            if let Some(claim) = claim {
                prop_assert_eq!(claim.index, *index);
                let set = roster.sets.iter().find(|set| set.members.contains(index)).unwrap();
                prop_assert_eq!(&set.members, &claim.set);
                prop_assert_eq!(u16::from(set.parity), claim.parity);
            }
        }
        let gone: BTreeSet<&String> = roster.notes.iter().collect();
        prop_assert!(gone.is_empty() || !lost.is_empty() || !first.notes.is_empty(), "{:?}", gone);
    }

    #[test]
    fn a_roster_that_is_none_is_refused(
        index_of_seat in prop::collection::vec(0..5u16, 0..5),
        sets in prop::collection::vec((prop::collection::vec(0..5u16, 0..4), 0..4u16), 0..4),
    ) {
        let plain = Plain { index_of_seat, sets, notes: Vec::new() };
        let nodes = plain.index_of_seat.len() as u16;
        if let Ok(roster) = Roster::try_from(plain) {
            is_sound(&roster, nodes);
        }
    }
}
