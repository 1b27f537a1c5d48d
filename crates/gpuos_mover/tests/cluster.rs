//! Whole clusters: what is restored after losses is one checkpoint, the newest that was committed or a complete newer one.

use gpuos_checkpoint::commit::Outcome;
use gpuos_store::disk::Disk;

use crate::support::*;

fn script(checkpoints: u32, network: Network, stop_after: Option<u64>) -> Script {
    Script {
        checkpoints,
        network,
        stop_after,
        rebuild: None,
        wrong: Wrong::Nothing,
        eager: false,
        crash: None,
    }
}

const RESTART: Script = Script {
    checkpoints: 0,
    network: QUIET,
    stop_after: None,
    rebuild: None,
    wrong: Wrong::Nothing,
    eager: false,
    crash: None,
};

const BAD: Network = Network {
    lost: 20,
    repeated: 10,
    delay: 60,
};

/// Two different nodes.
fn two(random: &mut Random, nodes: u64) -> [u16; 2] {
    let first = random.below(nodes);
    let second = (first + 1 + random.below(nodes - 1)) % nodes;
    [first as u16, second as u16]
}

/// Starts the job again: what is restored is at least as new as what any program was told.
fn restart(cluster: &mut Cluster, script: Script) -> Session {
    let committed = cluster.committed;
    let session = cluster.session(script);
    let ready = session.ready[0].as_ref().unwrap();
    assert!(
        ready.restore >= committed,
        "{:?} is older than {committed:?}: {ready:?}",
        ready.restore
    );
    session
}

#[test]
fn a_checkpoint_comes_back_after_the_loss_of_any_two_disks() {
    for seed in seeds(2, 60) {
        let mut cluster = Cluster::new(8, "rs:6+2", seed);
        let session = cluster.session(script(3, QUIET, None));
        let mut outcomes = session.outcomes.values().flat_map(|all| all.values());
        assert!(outcomes.all(|one| *one == Outcome::Committed));
        // Again and again: what was made again has to be as good as what was lost.
        for _ in 0..3 {
            for node in two(&mut cluster.random, 8) {
                cluster.lose(node);
            }
            let session = cluster.session(RESTART);
            let ready = session.ready[0].as_ref().unwrap();
            assert_eq!(ready.restore, cluster.committed);
            assert!(ready.passed_over.is_empty());
        }
        let session = cluster.session(script(1, QUIET, None));
        assert_eq!(session.outcomes.len(), 1);
    }
}

/// Neighbours in the set, of which one keeps the other's manifest.
#[test]
fn two_neighbours_are_no_worse_than_two_others() {
    let mut cluster = Cluster::new(8, "rs:6+2", 5);
    cluster.session(script(2, QUIET, None));
    for first in 0..8 {
        let mut cluster = cluster.fork();
        cluster.lose(first);
        cluster.lose((first + 1) % 8);
        restart(&mut cluster, RESTART);
    }
}

#[test]
fn any_moment_of_a_crash_leaves_one_checkpoint_on_all_nodes() {
    for seed in seeds(2, 60) {
        let mut cluster = Cluster::new(8, "rs:6+2", 100 + seed);
        cluster.session(script(1, QUIET, None));
        let all = cluster.fork().session(script(2, QUIET, None)).sent;
        for round in 0..4 {
            let network = if round == 3 { BAD } else { QUIET };
            let mut cluster = cluster.fork();
            cluster.random.0 = cluster.random.0.wrapping_add(round);
            let at = 1 + cluster.random.below(all);
            let session = cluster.session(script(2, network, Some(at)));
            assert!(session.stopped || session.sent < at);
            cluster.power_off();
            for node in two(&mut cluster.random, 8) {
                cluster.lose(node);
            }
            // The repair may be stopped too, and goes on from whatever it has made; no further disk is lost meanwhile.
            let at = 1 + cluster.random.below(400);
            cluster.session(script(0, network, Some(at)));
            cluster.power_off();
            restart(&mut cluster, script(1, QUIET, None));
            let committed = cluster.committed;
            let session = cluster.session(RESTART);
            assert_eq!(session.ready[0].as_ref().unwrap().restore, committed);
        }
    }
}

/// The power goes when one of the disks has failed, in the middle of whatever it did.
#[test]
fn any_call_of_a_disk_may_be_its_last() {
    let mut stopped = 0;
    for seed in seeds(8, 400) {
        let mut cluster = Cluster::new(8, "rs:6+2", 300 + seed);
        cluster.session(script(1, QUIET, None));
        let node = cluster.random.below(8) as u16;
        let crash = Some((node, cluster.random.below(500)));
        let session = cluster.session(Script {
            crash,
            ..script(2, QUIET, None)
        });
        stopped += u32::from(session.stopped);
        cluster.power_off();
        for node in two(&mut cluster.random, 8) {
            cluster.lose(node);
        }
        let crash = Some((node, cluster.random.below(300)));
        cluster.session(Script { crash, ..RESTART });
        cluster.power_off();
        restart(&mut cluster, script(1, QUIET, None));
        restart(&mut cluster, RESTART);
    }
    assert!(stopped > 0, "no disk failed while something was done");
}

#[test]
fn a_bad_network_costs_time_only() {
    for seed in seeds(2, 60) {
        let mut cluster = Cluster::new(8, "rs:6+2", 200 + seed);
        let session = cluster.session(script(2, BAD, None));
        for (id, outcomes) in &session.outcomes {
            let mut kinds: Vec<bool> = outcomes
                .values()
                .map(|one| *one == Outcome::Committed)
                .collect();
            kinds.dedup();
            assert_eq!(kinds.len(), 1, "{id} ended in two ways: {outcomes:?}");
        }
        for node in two(&mut cluster.random, 8) {
            cluster.lose(node);
        }
        restart(&mut cluster, script(1, BAD, None));
    }
}

#[test]
fn three_of_one_set_are_too_many_and_it_is_said() {
    let mut cluster = Cluster::new(8, "rs:6+2", 7);
    cluster.session(script(2, QUIET, None));
    for node in [1, 2, 6] {
        cluster.lose(node);
    }
    cluster.committed = None;
    let session = cluster.session(RESTART);
    for ready in session.ready.iter().flatten() {
        assert_eq!(ready.restore, None);
        let said = "what nodes 1, 2 and 6 of a set that can lose 2 had was not found";
        for (why, number) in ready.passed_over.iter().zip([2, 1]) {
            assert!(
                why.starts_with(&format!("checkpoint {number}: {said}")),
                "{why}"
            );
        }
        assert_eq!(ready.passed_over.len(), 2);
        assert_eq!(ready.highest, 2);
        assert!(ready.lost, "a program does not begin anew unasked");
    }
    // The job begins anew, and its next checkpoint is as good as any.
    cluster.session(script(1, QUIET, None));
    cluster.lose(3);
    let session = cluster.session(RESTART);
    assert_eq!(
        session.ready[0].as_ref().unwrap().restore,
        cluster.committed
    );
    assert_eq!(cluster.committed.unwrap().number, 3);
}

/// A job that has made no checkpoint may begin anew, whatever is there.
#[test]
fn what_was_never_committed_is_not_lost() {
    let mut found = 0;
    for at in (20..80).step_by(3) {
        let mut cluster = Cluster::new(4, "partner", 15);
        cluster.session(script(1, QUIET, Some(at)));
        cluster.power_off();
        let session = cluster.session(RESTART);
        let ready = session.ready[0].as_ref().unwrap();
        assert!(!ready.lost, "{ready:?}");
        found += usize::from(ready.restore.is_none() && !ready.passed_over.is_empty());
    }
    assert!(found > 0, "nothing was there of any attempt");
}

/// Nodes come back in other places: the disk of one has the parts of another.
#[test]
fn a_node_with_the_disk_of_another_one_makes_its_own_part() {
    let mut cluster = Cluster::new(8, "rs:6+2", 16);
    cluster.session(script(3, QUIET, None));
    cluster.disks[1] = cluster.disks[2].fork();
    restart(&mut cluster, RESTART);
    let committed = cluster.committed;
    cluster.lose(2);
    cluster.lose(5);
    let session = restart(&mut cluster, script(1, QUIET, None));
    assert_eq!(session.ready[0].as_ref().unwrap().restore, committed);
}

#[test]
fn three_of_two_sets_come_back() {
    let mut cluster = Cluster::new(16, "rs:6+2", 8);
    assert_eq!(cluster.sets.len(), 2);
    cluster.session(script(2, QUIET, None));
    let [first, second] = [0, 1].map(|set: usize| cluster.sets[set].members.clone());
    for node in [first[0], first[1], second[5]] {
        cluster.lose(node.0);
    }
    restart(&mut cluster, RESTART);
}

#[test]
fn other_schemes_stand_what_they_say() {
    for (scheme, nodes, most) in [
        ("partner", 4, 1),
        ("xor:4", 8, 1),
        ("rs:2+3", 5, 3),
        ("single", 3, 0),
    ] {
        let mut cluster = Cluster::new(nodes, scheme, 9);
        cluster.session(script(2, QUIET, None));
        let members = cluster.sets[0].members.clone();
        let mut enough = cluster.fork();
        members
            .iter()
            .take(most)
            .for_each(|node| enough.lose(node.0));
        restart(&mut enough, script(1, QUIET, None));

        members
            .iter()
            .take(most + 1)
            .for_each(|node| cluster.lose(node.0));
        cluster.committed = None;
        let session = cluster.session(RESTART);
        let ready = session.ready[0].as_ref().unwrap();
        assert_eq!(ready.restore, None, "{scheme}");
        let gone = &ready.passed_over[0];
        assert!(
            gone.contains("was not found") && gone.contains("checkpoint 2"),
            "{scheme}: {gone}"
        );
    }
}

#[test]
fn an_earlier_checkpoint_is_taken_when_the_newest_cannot_be() {
    let mut cluster = Cluster::new(8, "rs:6+2", 10);
    cluster.session(script(1, QUIET, None));
    let older = cluster.committed.unwrap();
    cluster.session(script(1, QUIET, None));
    let newest = cluster.committed.unwrap();
    for node in [0, 3, 4] {
        let disk = &cluster.disks[usize::from(node)];
        disk.unlink(&cluster.part(node, newest), b"segment")
            .unwrap();
    }
    let session = cluster.session(script(1, QUIET, None));
    for ready in session.ready.iter().flatten() {
        assert_eq!(ready.restore, Some(older));
        let [why] = &ready.passed_over[..] else {
            panic!("{ready:?}");
        };
        let said = "checkpoint 2: what nodes 0, 3 and 4 of a set that can lose 2 had is missing or damaged";
        assert!(why.contains(said), "{why}");
    }
    let third = cluster.committed.unwrap();
    assert_eq!(third.number, 3);
    cluster.lose(0);
    cluster.lose(7);
    let session = cluster.session(RESTART);
    assert_eq!(session.ready[0].as_ref().unwrap().restore, Some(third));
}

#[test]
fn damaged_bytes_are_found_and_made_again() {
    let mut cluster = Cluster::new(8, "rs:6+2", 11);
    cluster.session(script(2, QUIET, None));
    let newest = cluster.committed.unwrap();
    for (node, name) in [(2, "segment"), (6, "manifest")] {
        let disk = &cluster.disks[node as usize];
        let file = disk
            .open(&cluster.part(node, newest), name.as_bytes())
            .unwrap();
        disk.damage(file, |bytes| {
            if let Some(byte) = bytes.get_mut(100) {
                *byte ^= 1;
            }
        });
    }
    restart(&mut cluster, RESTART);
    // All is whole again: two more may be lost.
    cluster.lose(0);
    cluster.lose(1);
    restart(&mut cluster, RESTART);
}

#[test]
fn a_part_that_cannot_be_made_fails_the_attempt_and_nothing_else() {
    for wrong in [Wrong::NoFolder(2), Wrong::Full(5), Wrong::Full(0)] {
        let mut cluster = Cluster::new(8, "rs:6+2", 14);
        cluster.session(script(1, QUIET, None));
        let session = cluster.session(Script {
            wrong,
            ..script(2, QUIET, None)
        });
        for (id, outcomes) in &session.outcomes {
            match id.number {
                2 => {
                    let Outcome::Failed { why } = &outcomes[&0] else {
                        panic!("{id} is committed");
                    };
                    let said = match wrong {
                        Wrong::Full(_) => "No space left on device",
                        _ => "had not stored a part after 60 s",
                    };
                    assert!(why.contains(said), "{why}");
                    assert!(
                        outcomes
                            .values()
                            .all(|one| matches!(one, Outcome::Failed { .. }))
                    );
                }
                _ => assert!(outcomes.values().all(|one| *one == Outcome::Committed)),
            }
        }
        if wrong == Wrong::NoFolder(2) {
            // The leader cannot know for whom all others wait: they say so.
            for (node, note) in &session.notes {
                let said = match node {
                    2 => "has not finished its files",
                    _ => "waits for the files of nodes 2;",
                };
                assert!(note.contains(said), "{note}");
            }
            assert_eq!(session.notes.len(), 8);
        }
        assert_eq!(cluster.committed.unwrap().number, 3);
        cluster.lose(1);
        cluster.lose(2);
        restart(&mut cluster, RESTART);
    }
}

#[test]
fn a_node_makes_its_part_again_while_the_job_runs() {
    for (scheme, nodes) in [("rs:6+2", 8), ("partner", 2), ("xor:3", 3)] {
        let mut cluster = Cluster::new(nodes, scheme, 12);
        let session = cluster.session(Script {
            rebuild: Some(1),
            ..script(2, QUIET, None)
        });
        assert_eq!(session.rebuilt, cluster.committed);
    }
}

#[test]
fn a_damaged_record_of_the_commit_costs_a_rebuild_at_most() {
    let mut cluster = Cluster::new(8, "rs:6+2", 13);
    cluster.session(script(2, QUIET, None));
    for node in [0, 4] {
        let disk = &cluster.disks[node];
        let job = disk.open_folder(&folder(disk, b"store"), b"7").unwrap();
        let note = disk.open(&job, b"CURRENT").unwrap();
        disk.damage(note, |bytes| bytes[3] ^= 1);
    }
    restart(&mut cluster, script(1, QUIET, None));
    restart(&mut cluster, RESTART);
}
