//! Old checkpoints go, and what the newest need stays, on all nodes.

use gpuos_checkpoint::commit::Outcome;
use gpuos_store::disk::Disk;

use crate::support::*;

const BAD: Network = Network {
    lost: 15,
    repeated: 20,
    delay: 120,
};

fn script(checkpoints: u32, network: Network) -> Script {
    Script {
        checkpoints,
        network,
        stop_after: None,
        rebuild: None,
        wrong: Wrong::Nothing,
        eager: false,
        crash: None,
    }
}

/// Two stay, of a generation of three: five are needed at most, and the one that was committed just now.
const MOST: usize = 6;

fn all_committed(session: &Session) {
    for (id, outcomes) in &session.outcomes {
        let committed = outcomes.values().all(|one| *one == Outcome::Committed);
        assert!(committed, "{id}: {outcomes:?}");
    }
}

fn lose_two(cluster: &mut Cluster) {
    let first = cluster.random.below(8) as u16;
    let second = (first + 1 + cluster.random.below(7) as u16) % 8;
    cluster.lose(first);
    cluster.lose(second);
}

/// The newest that was committed comes back, or a newer one, and the job goes on from it.
fn comes_back(cluster: &mut Cluster) {
    let committed = cluster.committed;
    let session = cluster.session(script(1, QUIET));
    let ready = session.ready[0].as_ref().unwrap();
    assert!(
        ready.restore >= committed,
        "{ready:?} instead of {committed:?}"
    );
}

#[test]
fn fifty_checkpoints_take_no_more_room_than_a_few() {
    let mut cluster = Cluster::new(8, "rs:6+2", 1);
    let session = cluster.session(script(50, QUIET));
    all_committed(&session);
    assert_eq!(session.outcomes.len(), 50);
    assert!(session.most <= MOST, "{}", session.most);
    for node in 0..8 {
        assert!(cluster.held(node) >= 2, "two can be restored");
    }
    lose_two(&mut cluster);
    comes_back(&mut cluster);
    assert_eq!(cluster.committed.map(|id| id.number), Some(51));
}

#[test]
fn runs_that_last_for_one_checkpoint_leave_no_more_either() {
    let mut cluster = Cluster::new(4, "partner", 2);
    for _ in 0..12 {
        let session = cluster.session(script(1, QUIET));
        all_committed(&session);
        assert!(session.most <= MOST, "{}", session.most);
    }
    // The one that was restored stays beside the new one: it may be all that there is in a moment.
    assert!((0..4).all(|node| cluster.held(node) >= 2));
}

/// A node may hear of a commit when it makes its next part already.
#[test]
fn nothing_is_removed_while_a_part_is_made() {
    for seed in seeds(3, 60) {
        let mut cluster = Cluster::new(8, "rs:6+2", 20 + seed);
        let session = cluster.session(Script {
            eager: true,
            ..script(12, BAD)
        });
        all_committed(&session);
        assert!(session.most <= MOST + 2, "{}", session.most);
        lose_two(&mut cluster);
        comes_back(&mut cluster);
    }
}

#[test]
fn two_nodes_that_are_lost_at_any_moment_cost_no_checkpoint() {
    for seed in seeds(2, 60) {
        let mut cluster = Cluster::new(8, "rs:6+2", 40 + seed);
        cluster.session(script(2, QUIET));
        let all = cluster.fork().session(script(8, QUIET)).sent;
        for round in 0..4 {
            let mut cluster = cluster.fork();
            cluster.random.0 = cluster.random.0.wrapping_add(round);
            let network = if round == 3 { BAD } else { QUIET };
            let stop_after = Some(1 + cluster.random.below(all));
            cluster.session(Script {
                stop_after,
                ..script(8, network)
            });
            cluster.power_off();
            lose_two(&mut cluster);
            comes_back(&mut cluster);
            // What was made again is as good, also for what is made after it.
            all_committed(&cluster.session(script(4, QUIET)));
            lose_two(&mut cluster);
            comes_back(&mut cluster);
        }
    }
}

/// The newest cannot be restored: the one before is as good, of the same run or of an earlier one.
#[test]
fn the_one_before_the_newest_has_all_that_it_needs() {
    for seed in seeds(3, 60) {
        for sessions in [&[3, 1][..], &[6], &[2, 3]] {
            let mut cluster = Cluster::new(8, "rs:6+2", 80 + seed);
            for checkpoints in sessions {
                all_committed(&cluster.session(script(*checkpoints, QUIET)));
            }
            let newest = cluster.committed.unwrap();
            for node in [0, 3, 4] {
                let disk = &cluster.disks[usize::from(node)];
                disk.unlink(&cluster.part(node, newest), b"segment")
                    .unwrap();
            }
            cluster.lose(1);
            cluster.lose(6);
            let session = cluster.session(script(1, QUIET));
            let ready = session.ready[0].as_ref().unwrap();
            let restored = ready.restore.map(|id| id.number);
            assert_eq!(restored, Some(newest.number - 1), "{ready:?}");
        }
    }
}

/// A disk that stops while old checkpoints are removed leaves the newest as it was.
#[test]
fn a_removal_may_end_at_any_call() {
    for seed in seeds(8, 300) {
        let mut cluster = Cluster::new(8, "rs:6+2", 60 + seed);
        cluster.session(script(3, QUIET));
        let node = cluster.random.below(8) as u16;
        let crash = Some((node, cluster.random.below(2000)));
        cluster.session(Script {
            crash,
            ..script(5, QUIET)
        });
        cluster.power_off();
        lose_two(&mut cluster);
        comes_back(&mut cluster);
    }
}

#[test]
fn parts_of_attempts_that_failed_go_too() {
    let mut cluster = Cluster::new(4, "partner", 5);
    for number in 0..6 {
        let wrong = match number % 2 {
            0 => Wrong::Full(1),
            _ => Wrong::NoFolder(2),
        };
        let session = cluster.session(Script {
            wrong,
            ..script(2, QUIET)
        });
        assert!(session.most <= MOST, "{}", session.most);
    }
}
