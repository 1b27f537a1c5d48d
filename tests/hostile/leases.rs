//! gpuosd's socket for programs with memory in tiers, which every user of a node may open.

use std::path::PathBuf;

use gpuos_core::wire::{Reply, Request, memory_socket};

use crate::attempt::{Attempt, attempt, ensure, judge};
use crate::stage::{Stage, first_line};
use crate::users::{MALLORY, User};

/// SECURITY.md's name of the input.
const INPUT: &str = "Requests for memory in tiers";

/// Accounts that open connections; they need no entry in passwd for that.
const CROWD: [u32; 4] = [61_031, 61_032, 61_033, 61_034];
/// As many as would fill all places where each of them had as many as he can.
const GREEDY: [u32; 8] = [
    61_051, 61_052, 61_053, 61_054, 61_055, 61_056, 61_057, 61_058,
];
/// One who has none.
const MODEST: User = User {
    name: "has-no-place-yet",
    uid: 61_059,
};
/// One that is to be answered all the same.
const OTHER: User = User {
    name: "nobody-else",
    uid: 61_035,
};

/// Any GPU: whoever is heard at all would be told that his job does not have it.
const GPU: &str = "00000000000000000000000000000000";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let mut all = Vec::new();
    lines(&mut all);
    all.push(crowd().short());
    all.push(greedy().short());
    all
}

fn socket(stage: &Stage, node: &str) -> PathBuf {
    memory_socket(&stage.socket(node).display().to_string()).into()
}

/// `Ok` where nobody has a lease on a node, and gpuosd answers root.
fn nothing_lent(stage: &Stage, node: &str) -> Result<(), String> {
    match stage.ask(node, &Request::Memory)? {
        Reply::Memory { memory } => ensure(memory.programs.is_empty(), || {
            format!("{:?}", memory.programs)
        }),
        other => Err(format!("{other:?}")),
    }
}

/// What a process of no such job may say: all of it comes to nothing.
fn lines(all: &mut Vec<Attempt>) {
    let held = "it is told of no memory, nothing is lent, and gpuosd is the same process";
    let ask = format!("hello 1\nask {GPU} 1099511627776 1\n");
    let all_of_it = format!(
        "hello 1\nreturn working\nask {GPU} 18446744073709551615 0\nparked 0 0 0\nback 0 0\nmoved 1 1\nidle\nbusy\npinned\nbye\n"
    );
    let figures = format!(
        "hello 2\nask {GPU} 1 1\nfigures 1 1 1 1 1 1 18446744073709551615\ndemoted 18446744073709551615\n"
    );
    for (name, text) in [
        (
            "tells of heat and moves without a job",
            figures.into_bytes(),
        ),
        ("asks for a GPU without a job", ask.clone().into_bytes()),
        (
            "says that it works still, a thousand times, without a job",
            format!("hello 3\n{ask}{}", "working\n".repeat(1000)).into_bytes(),
        ),
        (
            "denies itself the GPU in gpuosd's words",
            b"hello 3\ndenied nobody starts here\n".to_vec(),
        ),
        ("says all that can be said", all_of_it.into_bytes()),
        (
            "names the job of another",
            format!("hello 1 {{victim}}\n{ask}").into_bytes(),
        ),
        ("sends a line of 128 KiB", vec![b'x'; 128 << 10]),
        ("sends half a line", b"hello".to_vec()),
        ("sends bytes", (0..=255).cycle().take(4096).collect()),
        (
            "speaks as gpuosd does",
            format!(
                "lease {GPU} 1 1 1 turn\nturn\npark 1\npressure calm\ntrim 1\nbudget {GPU} 1\n"
            )
            .into_bytes(),
        ),
    ] {
        all.push(attempt(INPUT, name, held, move |stage| {
            let pid = stage.cluster.lab.gpuosd_pid("n3");
            let victim = stage.victims.plain.to_string();
            let text = String::from_utf8(text.clone())
                .map_or(text, |text| text.replace("{victim}", &victim).into_bytes());
            let told = stage.talk_to(MALLORY, &socket(stage, "n3"), &text, 2);
            judge(move |stage| {
                let told = told.heard();
                let lent = told.iter().find(|line| !line.starts_with("refused "));
                ensure(lent.is_none(), || format!("it was told {lent:?}"))?;
                nothing_lent(stage, "n3")?;
                let now = stage.cluster.lab.gpuosd_pid("n3");
                ensure(pid.is_some() && now == pid, || {
                    format!("{pid:?} is {now:?}")
                })
            })
        }));
    }
}

/// Many connections that stay.
fn crowd() -> Attempt {
    let held = "root is answered, and so are users on the other socket";
    attempt(
        INPUT,
        "four accounts hold 64 connections each",
        held,
        |stage| {
            let path = socket(stage, "n3").display().to_string();
            let crowd = CROWD.map(|uid| stage.part(uid, "hold", &[&path, "64"]));
            let mut crowd: Vec<_> = crowd.into_iter().collect();
            let holds: Vec<String> = crowd.iter_mut().map(first_line).collect();
            crowd.into_iter().for_each(|one| stage.keep(one));
            let hello =
                "{\"ask\":\"hello\",\"protocol\":1,\"client\":\"gpuos\"}\n{\"ask\":\"memory\"}\n";
            // Nobody whom other attempts have ask at the same time.
            let told = stage.talk(OTHER, "n3", hello.as_bytes(), 2);
            judge(move |stage| {
                nothing_lent(stage, "n3")?;
                stage.status("n3")?;
                let told = told.heard();
                let answered = told
                    .iter()
                    .any(|line| line.contains("\"answer\":\"memory\""));
                ensure(answered, || {
                    format!("{holds:?}; the other was told {told:?}")
                })
            })
        },
    )
}

/// Users who take all places that they can get, on the socket for programs.
fn greedy() -> Attempt {
    let held = "one who has no place is answered as if nobody were there";
    attempt(
        INPUT,
        "eight accounts take all places that they get",
        held,
        |stage| {
            let path = socket(stage, "n3");
            let shown = path.display().to_string();
            let crowd = GREEDY.map(|uid| stage.part(uid, "hold", &[&shown, "64"]));
            let mut crowd: Vec<_> = crowd.into_iter().collect();
            let holds: Vec<String> = crowd.iter_mut().map(first_line).collect();
            crowd.into_iter().for_each(|one| stage.keep(one));
            let told = stage.talk_to(MODEST, &path, b"hello 3\n", 2);
            judge(move |stage| {
                nothing_lent(stage, "n3")?;
                let told = told.heard();
                let answered = told.iter().any(|line| line.starts_with("refused "));
                let full = told.iter().any(|line| line.contains("too many programs"));
                ensure(answered && !full, || {
                    format!("{holds:?}; he was told {told:?}")
                })
            })
        },
    )
}
