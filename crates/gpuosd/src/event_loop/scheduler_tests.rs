use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;

use gpuos_core::health::Rules;
use gpuos_model::gpu_index::GresGpu;

use super::*;
use crate::event_loop::client::done;
use crate::event_loop::health::Health;

/// A scheduler, its clock, and a node of two GPUs.
struct World {
    scheduler: Scheduler,
    health: Health,
    start: Instant,
    second: u64,
    /// slurmctld does not answer.
    no_answer: bool,
    /// When the node's record was asked for, in seconds.
    shows: Vec<u64>,
    fx: Vec<Effect>,
}

impl World {
    fn new(adopt: bool) -> World {
        let start = Instant::now();
        World {
            scheduler: Scheduler::new(Vec::new(), adopt, start),
            health: Health::restore(NodeHealth::new(2, 0)),
            start,
            second: 0,
            no_answer: false,
            shows: Vec::new(),
            fx: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            at: self.start + Duration::from_secs(self.second),
            running_ms: self.second * 1000,
            wall_ms: self.second * 1000,
        }
    }

    /// An administrator takes GPU 1 out.
    fn out(&mut self) {
        let admin = Admin {
            verb: Verb::Offline,
            gpu: Some(1u8.try_into().unwrap()),
            reason: "test".into(),
            uid: 0,
            force: false,
        };
        self.health.set(Rules::default());
        let now = self.now();
        self.health.apply(Event::Admin(admin), now);
        assert!(self.health.node().part().has_any_out());
    }

    /// A second of the loop; the thread answers at once.
    fn second(&mut self) {
        let now = self.now();
        let jobs = Table::default();
        self.scheduler.tick(self.health.node(), &jobs, now.at);
        while let Some(task) = self.scheduler.next(now.at) {
            if task == Task::Show {
                self.shows.push(self.second);
            }
            let gone = || Outcome::NoAnswer("no contact".into());
            let answer = match (&task, self.no_answer) {
                (Task::Show, true) => Answer::Show(Err(gone())),
                (Task::Show, false) => Answer::Show(Ok(Box::default())),
                (Task::Jobs(_), true) => Answer::Jobs(Err(gone())),
                (Task::Jobs(_), false) => Answer::Jobs(Ok(Vec::new())),
                (Task::Act(..), true) => Answer::Act(gone()),
                (Task::Act(..), false) => Answer::Act(Outcome::Nothing(String::new())),
                (Task::Job(_) | Task::Config, _) => Answer::Config(Ok(None), None),
            };
            self.fx.extend(self.scheduler.answered(&answer, now));
        }
        self.second += 1;
    }

    fn seconds(&mut self, count: u64) -> BTreeSet<u64> {
        (0..count).for_each(|_| self.second());
        std::mem::take(&mut self.shows).into_iter().collect()
    }
}

/// Whether effects say that slurmctld is away, or is so no more.
fn troubles(fx: &mut Vec<Effect>) -> Vec<bool> {
    let of = |effect| match effect {
        Effect::Trouble("slurmctld", what) => Some(what.is_some()),
        _ => None,
    };
    fx.drain(..).filter_map(of).collect()
}

#[test]
fn a_slurmctld_that_is_away_is_asked_ever_more_seldom_and_at_once_when_it_is_back() {
    let mut world = World::new(false);
    world.no_answer = true;
    // Two questions each time, each of which doubles the wait: 2 and 4 s, 8 and 16 s, then 30 s.
    let asked = world.seconds(121);
    assert_eq!(asked, [0, 4, 20, 50, 80, 110].into());
    assert!(troubles(&mut world.fx).iter().all(|away| *away));
    let next = world.second + 19;
    world.no_answer = false;
    assert_eq!(world.seconds(60), [next, next + 1, next + 21].into());
    assert_eq!(troubles(&mut world.fx), [false], "said once");
    // The next time it begins anew.
    world.no_answer = true;
    let asked: Vec<u64> = world.seconds(60).into_iter().collect();
    assert_eq!(asked[1] - asked[0], 4);
}

#[test]
fn it_is_asked_again_sooner_while_a_gpu_is_out_and_most_often_after_a_change() {
    let mut world = World::new(false);
    assert_eq!(world.seconds(61), [0, 20, 40, 60].into());
    world.out();
    let (action, why) = (Action::Publish(world.health.node().part()), Why::Publish(1));
    let outcome = Outcome::Done("told".into());
    let (jobs, now) = (Table::default(), world.now());
    let fx = world
        .scheduler
        .acted((&action, why), outcome, &jobs, now.at);
    let fx: Vec<Effect> = fx.into_iter().collect();
    let [
        Effect::Rules(Event::Published {
            revision: 1,
            ok: true,
        }),
        Effect::Note { .. },
        Effect::PollScheduler(look),
        Effect::Save(crate::event_loop::effect::Then::Nothing),
    ] = &fx[..]
    else {
        panic!("{fx:?}");
    };
    assert_eq!(world.scheduler.published(), "[gpuos:1 out=1]");
    world.scheduler.poll_by(*look, now.at);
    let asked: Vec<u64> = world.seconds(120).into_iter().collect();
    let gaps: Vec<u64> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(asked[0], 63, "what was changed is looked at");
    assert_eq!(gaps, [6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 20, 20], "{asked:?}");
}

#[test]
fn a_look_is_no_later_than_the_first_who_wants_it_and_no_sooner_than_allowed() {
    let after = Duration::from_secs;
    for (looks, wanted) in [
        (vec![PollBy::In(after(7))], 9),
        (vec![PollBy::In(after(7)), PollBy::In(after(3))], 5),
        (vec![PollBy::In(after(3)), PollBy::In(after(7))], 5),
        (vec![PollBy::AfterLast(after(5))], 5),
        (vec![PollBy::InAndAfterLast(after(1), after(5))], 5),
        (vec![PollBy::InAndAfterLast(after(9), after(5))], 11),
        (vec![PollBy::In(after(60))], 20),
    ] {
        let mut world = World::new(false);
        world.seconds(2);
        for look in &looks {
            let now = world.now();
            world.scheduler.poll_by(*look, now.at);
        }
        let asked = world.seconds(40);
        assert_eq!(asked.first(), Some(&wanted), "{looks:?}");
    }
}

#[test]
fn what_slurmctld_shows_is_taken_over_before_anything_is_told_to_it() {
    let mut world = World::new(true);
    let part = ExtraPart::default();
    world.scheduler.publish(1, part.clone());
    assert_eq!(world.scheduler.waiting(), 0);
    let record = NodeRecord {
        gpus: vec![("h100".into(), 4)],
        published: ExtraPart {
            out: [3, 9].into_iter().filter_map(GresGpu::new).collect(),
            ..ExtraPart::default()
        },
        ..NodeRecord::default()
    };
    let fx = world.scheduler.shown(&record, world.health.node(), false);
    let fx: Vec<Effect> = fx.into_iter().collect();
    let [
        Effect::Grow(4),
        // Not GPU 9, which it has not.
        Effect::KnowPooled(known),
        Effect::Command(Admin {
            verb: Verb::Drain,
            gpu: Some(drained),
            ..
        }),
        Effect::Save(_),
        Effect::Rules(Event::Shown { drain: None, .. }),
    ] = &fx[..]
    else {
        panic!("{fx:?}");
    };
    assert_eq!([known, drained].map(|gpu| u8::from(*gpu)), [3, 3]);
    let again = world.scheduler.shown(&record, world.health.node(), false);
    assert_eq!(again.into_iter().count(), 2, "once");
    world.scheduler.publish(2, part);
    assert_eq!(world.scheduler.waiting(), 1);
}

#[test]
fn a_job_that_is_not_requeued_is_ended_where_it_has_the_gpu() {
    let mut world = World::new(false);
    let mut jobs = Table::default();
    jobs.jobs.insert(7.into(), Default::default());
    let now = world.now().at;
    let mut refused = |job| {
        let act = (&Action::Requeue { job }, Why::Rule);
        let outcome = Outcome::Refused("disabled".into());
        let fx = world.scheduler.acted(act, outcome, &jobs, now);
        fx.into_iter().collect::<Vec<Effect>>()
    };
    let fx = refused(7.into());
    let [
        Effect::ForgetRelease(forgotten),
        Effect::Note {
            job: Some(noted), ..
        },
        Effect::PollScheduler(PollBy::In(_)),
        Effect::Ask(Task::Act(Action::Tell { job: told, .. }, Why::Rule)),
        Effect::MayNotRequeue(kept),
        Effect::Ask(Task::Act(
            Action::Kill {
                job: killed,
                step: None,
            },
            Why::Rule,
        )),
        Effect::Save(_),
    ] = &fx[..]
    else {
        panic!("{fx:?}");
    };
    assert_eq!([forgotten, noted, told, kept, killed], [&7.into(); 5]);
    let kills = |effect: &Effect| matches!(effect, Effect::Ask(_));
    assert!(!refused(8.into()).iter().any(kills), "it is not here");
}

#[test]
fn a_job_that_slurm_holds_back_is_asked_for_each_second_and_off_this_node_while_untold() {
    let mut world = World::new(false);
    world.scheduler.release(Release::of(&7.into(), false));
    world.scheduler.release(Release::of(&8.into(), true));
    world.scheduler.release(Release::of(&8.into(), true));
    world.scheduler.forget_release(&8.into());
    world.second = 1;
    let asked = |world: &mut World| {
        let now = world.now().at;
        let jobs = Table::default();
        world.scheduler.tick(world.health.node(), &jobs, now);
        let mut all = Vec::new();
        while let Some(task) = world.scheduler.next(now) {
            world
                .scheduler
                .answered(&Answer::Jobs(Ok(Vec::new())), world.now());
            all.extend(match task {
                Task::Act(Action::Release { job, avoid_node }, _) => Some((job, avoid_node)),
                _ => None,
            });
        }
        world.second += 1;
        all
    };
    for _ in 0..3 {
        assert_eq!(asked(&mut world), [(7.into(), false)]);
    }
    world.scheduler.forget_release(&7.into());
    assert_eq!(asked(&mut world), []);
}

#[test]
fn clients_that_reload_are_told_once_gpuos_toml_was_read() {
    let mut world = World::new(false);
    let (to, from) = sync_channel(1);
    world.scheduler.reload(Client::new(to));
    assert_eq!(world.scheduler.next(world.now().at), Some(Task::Config));
    let fx = world.scheduler.configured(false, &done("read"));
    for effect in fx {
        match effect {
            Effect::Reply(client, reply) => client.answer(reply),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(from.try_recv(), Ok(done("read")));
}
