//! Texts of PBS with structure: what is printed is read again as the same, and what is none is refused with a reason.

use gpuos_pbs::hook::place::{Arrangement, Place, Sharing};
use gpuos_pbs::hook::select::{Chunk, Select};
use gpuos_pbs::hook::vnodes::{gpu_of, parse_exec_vnode};
use proptest::prelude::*;

fn select(text: &str) -> Select {
    Select::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[test]
fn a_select_is_chunks_of_resources() {
    let read = select("2:ncpus=4:mem=10gb:ngpus=1+1:host='n1':note=\"a:b+c,d\"+ngpus=2 + 3");
    let counts: Vec<Option<u32>> = read.0.iter().map(|chunk| chunk.count).collect();
    assert_eq!(counts, [Some(2), Some(1), None, Some(3)]);
    assert_eq!(read.values("ngpus").collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(
        read.values("NGPUS").count(),
        2,
        "PBS reads names in any case"
    );
    assert_eq!(read.values("host").collect::<Vec<_>>(), ["n1"]);
    assert_eq!(read.values("note").collect::<Vec<_>>(), ["a:b+c,d"]);
    assert_eq!(
        read.to_string(),
        "2:ncpus=4:mem=10gb:ngpus=1+1:host=n1:note=\"a:b+c,d\"+ngpus=2+3"
    );
    assert_eq!(select("1:vnode=n1[2]").to_string(), "1:vnode=n1[2]");
}

#[test]
fn what_is_no_select_is_refused_with_a_reason() {
    for (text, why) in [
        ("", "'' has no value"),
        ("+1", "'' has no value"),
        ("1+", "'' has no value"),
        ("0:ncpus=1", "'0' is no number of chunks"),
        (
            "99999999999:ncpus=1",
            "'99999999999' is no number of chunks",
        ),
        ("1x:ncpus=1", "'1x' is no number of chunks"),
        ("1:ncpus", "'ncpus' has no value"),
        ("1:=3", "'' is no name of a resource"),
        ("1:ncpus=", "'' is no value"),
        ("1:a=\"b", "a quote in '1:a=\"b' is not closed"),
        ("1:a=\"b\"c", "'\"b\"c' is no value"),
        ("1:a=b\"c\"", "'b\"c\"' is no value"),
        ("(1:a=b)", "'(1' has no value"),
        ("1:a=b)", "'b)' is no value"),
    ] {
        assert_eq!(Select::parse(text).unwrap_err(), why, "{text}");
    }
}

#[test]
fn a_place_is_three_words_in_any_order() {
    let read = Place::parse("group=gpuos_leaf:EXCL:scatter").unwrap();
    assert_eq!(read.arrangement, Some(Arrangement::Scatter));
    assert_eq!(read.sharing, Some(Sharing::Excl));
    assert_eq!(read.to_string(), "scatter:excl:group=gpuos_leaf");
    for text in [
        "",
        "pack:",
        "packed",
        "free:scatter",
        "excl:shared",
        "group=",
        "group=a:group=b",
        "group=a,b",
    ] {
        assert!(Place::parse(text).is_err(), "{text}");
    }
}

#[test]
fn an_exec_vnode_is_lists_of_vnodes() {
    let read = parse_exec_vnode("(n1[2]:ncpus=1:ngpus=1+n1[3]:ngpus=1)+(n2:mem=4kb)+n3").unwrap();
    let names: Vec<Vec<&str>> = read
        .iter()
        .map(|chunk| chunk.iter().map(|given| given.vnode.as_str()).collect())
        .collect();
    assert_eq!(names, [vec!["n1[2]", "n1[3]"], vec!["n2"], vec!["n3"]]);
    assert_eq!(read[0][0].count("ngpus"), 1);
    assert_eq!(read[1][0].count("ngpus"), 0);
    for text in [
        "",
        "(n1",
        "n1)",
        "((n1))",
        "(n1+(n2)",
        "n1;rm",
        "(n1:ncpus)",
    ] {
        assert!(parse_exec_vnode(text).is_err(), "{text}");
    }
}

#[test]
fn a_vnode_of_a_part_of_a_host_is_named_by_host_and_number() {
    assert_eq!(gpu_of("n1[2]"), Some(("n1", 2)));
    for other in [
        "n1", "n1[]", "n1[02]", "n1[256]", "[1]", "n1[1]x", "n1[-1]", "n1[+1]", "n1[1][2]",
    ] {
        assert_eq!(gpu_of(other), None, "{other}");
    }
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9.]{1,8}",
        // One kind of quotes at most, as a text of PBS can hold.
        "[ -!#-~]{0,12}",
        "[ -&(-~]{0,12}",
    ]
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let want = ("[a-z][a-z0-9_]{0,8}", value());
    (
        proptest::option::of(1u32..100_000),
        proptest::collection::vec(want, 1..5),
    )
        .prop_map(|(count, wants)| Chunk { count, wants })
}

fn place() -> impl Strategy<Value = Place> {
    let arrangement = prop_oneof![
        Just(Arrangement::Free),
        Just(Arrangement::Pack),
        Just(Arrangement::Scatter),
        Just(Arrangement::Vscatter),
    ];
    let sharing = prop_oneof![
        Just(Sharing::Excl),
        Just(Sharing::Shared),
        Just(Sharing::Exclhost)
    ];
    (
        proptest::option::of(arrangement),
        proptest::option::of(sharing),
        proptest::option::of("[a-z][a-z0-9_-]{0,12}"),
    )
        .prop_map(|(arrangement, sharing, group)| Place {
            arrangement,
            sharing,
            group,
        })
        .prop_filter("PBS has no empty place", |place| *place != Place::default())
}

proptest! {
    #[test]
    fn a_select_is_read_as_it_is_printed(chunks in proptest::collection::vec(chunk(), 1..6)) {
        let asked = Select(chunks);
        prop_assert_eq!(Select::parse(&asked.to_string()), Ok(asked));
    }

    #[test]
    fn a_place_is_read_as_it_is_printed(place in place()) {
        prop_assert_eq!(Place::parse(&place.to_string()), Ok(place));
    }

    #[test]
    fn no_text_is_too_much_for_a_reader(text in "[ -~\\n\\t\u{e9}]{0,80}") {
        // What is read at all is printed as what it was read as.
        if let Ok(read) = Select::parse(&text) {
            prop_assert_eq!(Select::parse(&read.to_string()), Ok(read));
        }
        if let Ok(read) = Place::parse(&text) {
            prop_assert_eq!(Place::parse(&read.to_string()), Ok(read));
        }
        let _ = parse_exec_vnode(&text);
        let _ = gpu_of(&text);
    }
}
