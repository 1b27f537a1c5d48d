//! Commands for another node, through a stand-in that does with words and exit codes what ssh does: it joins what follows
//! the node's name and gives that to a shell there.

use crate::site::{RELEASES, Site};

/// n3 answers, n4 greets around its answer, n5 refuses, n1 has no gpuos; all else is unknown.
const SSH: &str = r#"#!/bin/sh
here=$(dirname "$0")/..
while :; do case "$1" in -o) shift 2 ;; -*) shift ;; *) break ;; esac; done
node=$1; shift
case "$node" in
n3) ;;
n4) echo "Welcome to $node {production}" ;;
n5) export REFUSE=1 ;;
n1) exec env -i PATH=/usr/bin:/bin sh -c "$*" ;;
*)
    echo "Warning: Permanently added '$node' to the list of known hosts." >&2
    echo "Host key verification failed." >&2
    exit 255 ;;
esac
export PATH="$here/far:/usr/bin:/bin" HERE="$here"
sh -c "$*"
code=$?
[ "$node" != n4 ] || echo "bye"
exit $code
"#;

/// gpuos of the other node.
const FAR: &str = r#"#!/bin/sh
for word; do printf '%s\n' "$word"; done >"$HERE/words"
if [ -n "$REFUSE" ]; then echo '{"schema":"gpuos.error/1","error":"gpuosd does not answer"}'; exit 1; fi
case "$*" in
*"health --watch"*) echo "2026-11-22 GPU 3: Xid 48"; exit 0 ;;
*--audit*) echo '{"schema":"gpuos.health-audit/1","lines":[{"at_ms":0,"gpu":3,"text":"the GPU is reset"}]}' ;;
*--reload*) echo '{"schema":"gpuos.health-reload/1","message":"gpuos.toml is read"}' ;;
*--migrate*)
    echo '{"schema":"gpuos.migrate/1","node":"n3","message":"n3 is draining","jobs":[
        {"job":17,"saved":4,"published":true,"requeued":true,"why":""},
        {"job":18,"saved":null,"published":false,"requeued":false,"why":"no room on n3"}]}'
    exit 1 ;;
*) echo '{"schema":"gpuos.admin/1","node":"n3","message":"n3: GPU 5 draining"}' ;;
esac
"#;

pub fn site() -> Site {
    let site = Site::new(RELEASES[0]);
    site.program("ssh", SSH);
    site.file("far.text", FAR);
    site.install(&site.dir.path().join("far.text"), "../far/gpuos");
    site
}

fn words(site: &Site) -> Vec<String> {
    let text = std::fs::read_to_string(site.path("words")).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

#[test]
fn a_node_is_emptied_by_its_own_command_which_says_who_stays() {
    let site = site();
    let said = site.run(&["drain", "n3", "--migrate", "--limit=3", "--reason=fan 2"]);
    let wanted = "n3 is draining\njob 17 has saved as checkpoint 4 and is requeued\n\
                  job 18 stays, and has not saved: no room on n3\n";
    assert_eq!((said.code, &said.out[..]), (1, wanted), "{}", said.err);
    let wanted = [
        "--json",
        "drain",
        "--local",
        "n3",
        "--migrate",
        "--limit=3",
        "--reason=fan 2",
    ];
    assert_eq!(words(&site), wanted);
    let said = site.run(&["drain", "n3:5", "--migrate"]);
    assert!(
        said.err.contains("--migrate is about a whole node"),
        "{}",
        said.err
    );
    for bad in [
        &["--migrate", "--force"][..],
        &["--limit=3"],
        &["--migrate", "--limit=0"],
    ] {
        assert_eq!(
            site.run(&[&["drain", "n3"], bad].concat()).code,
            2,
            "{bad:?}"
        );
    }
}

#[test]
fn a_drain_reaches_the_other_node_word_by_word() {
    let site = site();
    let reason = "Ann's fan; rm -rf $HOME `id` \"x\" $(id) \\";
    let said = site.run(&["drain", "n3:5", "--force", "--reason", reason]);
    assert_eq!(
        (said.code, &said.out[..]),
        (0, "n3: GPU 5 draining\n"),
        "{}",
        said.err
    );
    let reason = format!("--reason={reason}");
    assert_eq!(
        words(&site),
        ["--json", "drain", "--local", "n3:5", &reason, "--force"]
    );
    // A shell that greets, and options with --via.
    let said = site.run(&["online", "n4", "--via", "ssh -q -o ConnectTimeout=5"]);
    assert_eq!(
        (said.code, &said.out[..]),
        (0, "n3: GPU 5 draining\n"),
        "{}",
        said.err
    );
    assert_eq!(words(&site), ["--json", "online", "--local", "n4"]);
}

#[test]
fn what_went_wrong_on_the_way_is_said() {
    let site = site();
    let wrong = |args: &[&str], says: &[&str]| {
        let said = site.run(args);
        assert_eq!(said.code, 1, "{args:?}: {}", said.out);
        for text in says {
            assert!(said.err.contains(text), "{args:?}: {}", said.err);
        }
    };
    wrong(
        &["drain", "n2:5"],
        &["n2", "ssh", "Host key verification failed"],
    );
    // Nothing can be started on a node that there is not.
    let commands: [&[&str]; 5] = [
        &["drain", "nope:5"],
        &["ckpt", "list", "--node=nope"],
        &["mem", "show", "--node=nope"],
        &["mig", "nope"],
        &["health", "nope", "--audit"],
    ];
    for args in commands {
        wrong(args, &["there is no node nope: write one of n[1-4]"]);
    }
    wrong(&["drain", "n5:5"], &["n5: gpuosd does not answer"]);
    wrong(&["drain", "n1"], &["n1", "gpuos", "not found"]);
    wrong(
        &["drain", "n3", "--via", "nossh -x"],
        &["cannot reach n3", "nossh is not on PATH"],
    );
    wrong(&["drain", "n3", "--via", ""], &["--via is empty"]);
    let said = site.run(&["drain", "n3", "--via", "nossh"]);
    assert!(!said.err.contains("slurm-client"), "{}", said.err);
    // No name is an option of ssh, or more than a name for a shell.
    for name in ["-oProxyCommand=id", "n3;id", "$(id)", "a@n3"] {
        for args in [
            &["drain", "--", name][..],
            &["health", "--audit", "--", name],
        ] {
            let said = site.run(args);
            assert_eq!(said.code, 2, "{args:?}");
            assert!(said.err.contains("for example n3"), "{}", said.err);
        }
    }
    assert_eq!(words(&site), ["--json", "drain", "--local", "n5:5"]);
}

#[test]
fn health_asks_gpuosd_of_the_other_node() {
    let site = site();
    let audit = site.run(&["health", "n3", "--audit", "5"]);
    assert_eq!(audit.code, 0, "{}", audit.err);
    assert!(
        audit.out.contains("GPU 3: the GPU is reset"),
        "{}",
        audit.out
    );
    assert_eq!(words(&site), ["--json", "health", "--audit=5"]);
    let audit = site.run(&["health", "n3", "--audit", "--job", "7"]);
    assert_eq!(audit.code, 0, "{}", audit.err);
    assert_eq!(words(&site), ["--json", "health", "--audit=20", "--job=7"]);
    assert_eq!(site.run(&["health", "n3", "--job", "7"]).code, 2);
    let audit = site.run(&["--json", "health", "n4", "--audit"]);
    assert_eq!(audit.json()["schema"], "gpuos.health-audit/1");
    assert_eq!(audit.json()["lines"][0]["gpu"], 3);
    let reload = site.run(&["health", "n3", "--reload", "--runtime-dir", "/run/a b"]);
    assert_eq!(
        (reload.code, &reload.out[..]),
        (0, "gpuos.toml is read\n"),
        "{}",
        reload.err
    );
    assert_eq!(
        words(&site),
        ["--json", "health", "--reload", "--runtime-dir=/run/a b"]
    );
    let watch = site.run(&["health", "n3", "--watch"]);
    assert_eq!(
        (watch.code, &watch.out[..]),
        (0, "2026-11-22 GPU 3: Xid 48\n"),
        "{}",
        watch.err
    );
    assert_eq!(site.run(&["health", "n9", "--watch"]).code, 1);
    let both = site.run(&["health", "n3", "--watch", "--audit"]);
    assert_eq!(both.code, 2);
}
