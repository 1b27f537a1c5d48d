//! Which job a process belongs to, by the path of its control group.
//!
//! Anybody may make groups below his own and name them as Slurm names its own. So a path counts only as a whole, from
//! the root: Slurm's folder has its one place there, in which only root makes groups, and job and step follow at once.
//! Read in Slurm's source of 22.05.8, 24.11.5, 25.05.8, 25.11.7 and 26.05.3:
//!
//! - version 1, `xcgroup.c`: `/slurm/uid_U/job_N/step_S/task_T`, and `/slurm_NODE/...` with several slurmd on a machine;
//! - version 2, `cgroup_v2.c`: `/system.slice/slurmstepd.scope/job_N/step_S/user/task_T`, and `NODE_slurmstepd.scope` with
//!   several slurmd; from 25.11 another slice by `CgroupSlice`, and from 26.05 an id (SLUID) in the place of `job_N`
//!   unless `CgroupJobIdPaths=yes`. In a container all that lies below the group of its first process.

use gpuos_core::job::JobId;

use super::group_names::{GroupNames, is_sluid, untold};

/// A step of a job, as Slurm names its control group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct JobStep {
    /// The job.
    pub job: JobId,
    /// `0`, `1`, … `batch`, `extern` or `interactive`; empty for the job itself.
    pub step: String,
}

/// What the control groups of a process say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Belongs {
    /// It is in no group of Slurm's.
    Nobody,
    /// It belongs to a step.
    Step(JobStep),
    /// It is in a group of Slurm's, and whose is not to be told: why, in a clause. It is accused of nothing.
    Unclear(String),
}

/// What the kernel appends to the path of a group that was removed.
const DELETED: &str = " (deleted)";
/// Slices whose groups are not Slurm's, whatever is configured: sessions of users and containers.
const STRANGE: [&str; 2] = ["user.slice", "machine.slice"];
/// Slices that may lie in each other above Slurm's scope.
const DEEP: usize = 4;

impl JobStep {
    /// From the text of `/proc/PID/cgroup` on a machine whose first process is in the root. `None` for a process of no job, or of one that is
    /// not to be told by this text alone. Total: no text makes it fail.
    pub fn parse(text: &str) -> Option<JobStep> {
        match Belongs::parse(text, &Roots::default(), &GroupNames::default()) {
            Belongs::Step(step) => Some(step),
            Belongs::Nobody | Belongs::Unclear(_) => None,
        }
    }

    /// From the path of a control group, from the root of its hierarchy.
    pub(crate) fn of_path(path: &str, names: &GroupNames) -> Option<JobStep> {
        match of_path(path, names) {
            Belongs::Step(step) => Some(step),
            Belongs::Nobody | Belongs::Unclear(_) => None,
        }
    }
}

/// Where the hierarchies begin for Slurm: in a container, or seen from a namespace of control groups, not at `/`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Roots(Vec<String>);

impl Roots {
    /// From the text of `/proc/1/cgroup`, as Slurm finds them itself: the groups of the first process, and those above these.
    pub fn of_first_process(text: &str) -> Roots {
        let mut all = Vec::new();
        for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
            let path = path.trim_end_matches('/');
            all.push(path.to_owned());
            all.extend(path.rsplit_once('/').map(|(above, _)| above.to_owned()));
        }
        all.retain(|path| !path.is_empty());
        all.sort();
        all.dedup();
        Roots(all)
    }

    /// With one more, as an administrator names it.
    #[must_use]
    pub fn with(mut self, path: &str) -> Roots {
        let path = path.trim_end_matches('/');
        if !path.is_empty() {
            self.0.push(path.to_owned());
        }
        self
    }
}

impl Belongs {
    /// From the text of `/proc/PID/cgroup`. `names` has the jobs of groups that Slurm has given no number. Total: no text makes it fail.
    pub fn parse(text: &str, roots: &Roots, names: &GroupNames) -> Belongs {
        let mut seen: Vec<&str> = Vec::new();
        let mut found = Belongs::Nobody;
        for line in text.lines() {
            let mut parts = line.splitn(3, ':');
            let (Some(number), Some(controllers), Some(path)) =
                (parts.next(), parts.next(), parts.next())
            else {
                // Kernels before 5.13 let a newline into a name of version 1: then no line here is the kernel's for sure.
                return Belongs::Nobody;
            };
            let controllers = controllers.split(',').filter(|name| !name.is_empty());
            let ours: Vec<&str> = std::iter::once(number).chain(controllers).collect();
            let numbered = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            // Each hierarchy has one line, and each controller one hierarchy.
            if !numbered || ours.iter().any(|one| seen.contains(one)) {
                return Belongs::Nobody;
            }
            seen.extend(ours);
            found = match (found, below(path, roots, names)) {
                (found, Belongs::Nobody) => found,
                (Belongs::Nobody, new) => new,
                (Belongs::Step(old), Belongs::Step(new)) if old.job != new.job => {
                    let why = format!("it is in groups of job {} and of job {}", old.job, new.job);
                    return Belongs::Unclear(why);
                }
                // Controllers that Slurm does not use for a step stay with the job.
                (Belongs::Step(old), Belongs::Step(new)) => match old.step.is_empty() {
                    true => Belongs::Step(new),
                    false => Belongs::Step(old),
                },
                (Belongs::Unclear(why), _) | (_, Belongs::Unclear(why)) => Belongs::Unclear(why),
            };
        }
        found
    }
}

/// From a path of `/proc/PID/cgroup`.
fn below(path: &str, roots: &Roots, names: &GroupNames) -> Belongs {
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    let rests = roots.0.iter().filter_map(|root| path.strip_prefix(root));
    let rests = rests.filter(|rest| rest.starts_with('/'));
    let all = std::iter::once(path).chain(rests);
    let found = all.map(|path| of_path(path, names));
    let found = found.fold(Belongs::Nobody, |found, new| match found {
        Belongs::Nobody => new,
        found => found,
    });
    if found != Belongs::Nobody {
        return found;
    }
    // Seen from a namespace of control groups, a path may begin among the groups above this one, whose names are not told.
    let hidden = path.strip_prefix("/..").map(|rest| {
        let mut rest = rest;
        while let Some(next) = rest.strip_prefix("/..") {
            rest = next;
        }
        rest
    });
    let scoped = |rest: &str| rest.split('/').nth(1).is_some_and(is_scope);
    match hidden.is_some_and(scoped) {
        true => Belongs::Unclear(
            "gpuosd is in a namespace of control groups of its own, from where that of Slurm has no name".into(),
        ),
        false => Belongs::Nobody,
    }
}

/// From a path that begins at the root of its hierarchy.
fn of_path(path: &str, names: &GroupNames) -> Belongs {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    match &parts[..] {
        [first, user, rest @ ..] if is_version_1(first) && number("uid_", user).is_some() => {
            job(rest)
        }
        _ => {
            let slices = parts.iter().take_while(|part| is_slice(part)).count();
            let own = !parts.first().is_some_and(|first| STRANGE.contains(first));
            match (slices, parts.get(slices)) {
                (1..=DEEP, Some(scope)) if own && is_scope(scope) => {
                    version_2(&parts[slices + 1..], names)
                }
                _ => Belongs::Nobody,
            }
        }
    }
}

fn is_version_1(part: &str) -> bool {
    part == "slurm"
        || part
            .strip_prefix("slurm_")
            .is_some_and(|node| !node.is_empty())
}

/// Whether a name is that of a slice; systemd has no others in its own.
pub(crate) fn is_slice(part: &str) -> bool {
    part.strip_suffix(".slice")
        .is_some_and(|name| !name.is_empty())
}

/// Whether Slurm's scope may lie in this slice of the root.
pub(crate) fn may_be_slurms(slice: &str) -> bool {
    is_slice(slice) && !STRANGE.contains(&slice)
}

fn is_scope(part: &str) -> bool {
    let node = part.strip_suffix("slurmstepd.scope");
    node.is_some_and(|node| node.is_empty() || (node.len() > 1 && node.ends_with('_')))
}

fn version_2(rest: &[&str], names: &GroupNames) -> Belongs {
    match rest {
        [name, rest @ ..] if is_sluid(name) => match names.job(name) {
            Some(job) => Belongs::Step(JobStep {
                job,
                step: step(rest),
            }),
            None => Belongs::Unclear(untold(name)),
        },
        _ => job(rest),
    }
}

fn job(rest: &[&str]) -> Belongs {
    let Some(job) = rest.first().and_then(|part| number("job_", part)) else {
        return Belongs::Nobody;
    };
    Belongs::Step(JobStep {
        job: job.into(),
        step: step(&rest[1..]),
    })
}

/// The step behind a job's group; empty: none.
fn step(rest: &[&str]) -> String {
    let step = rest.first().and_then(|part| part.strip_prefix("step_"));
    let plain = |step: &&str| {
        step.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
    };
    step.filter(plain).unwrap_or_default().to_owned()
}

/// The number after `start`, written as Slurm writes it: no sign, no zero before it.
fn number(start: &str, part: &str) -> Option<u32> {
    let text = part.strip_prefix(start)?;
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(job: u32, step: &str) -> Option<JobStep> {
        Some(JobStep {
            job: job.into(),
            step: step.into(),
        })
    }

    #[test]
    fn groups_that_slurm_makes() {
        for (text, found) in [
            (
                "11:devices:/slurm/uid_1000/job_17/step_0/task_3\n4:cpu,cpuacct:/user.slice\n0::/init.scope\n",
                step(17, "0"),
            ),
            (
                "5:freezer:/slurm_n1/uid_0/job_4/step_batch\n",
                step(4, "batch"),
            ),
            (
                "3:devices:/slurm/uid_5/job_8\n2:freezer:/slurm/uid_5/job_8/step_extern\n",
                step(8, "extern"),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_21/step_interactive/user/task_0\n",
                step(21, "interactive"),
            ),
            (
                "0::/system.slice/n2_slurmstepd.scope/job_21/step_1/slurm\n",
                step(21, "1"),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_21/step_0/user/task_0 (deleted)\n",
                step(21, "0"),
            ),
            (
                "0::/system.slice/slurmstepd.scope/job_21 (deleted)\n",
                step(21, ""),
            ),
            // CgroupSlice of 25.11 and later.
            (
                "0::/gpu.slice/slurmstepd.scope/job_3/step_0+1/user\n",
                step(3, "0+1"),
            ),
            (
                "0::/gpu.slice/gpu-slurm.slice/slurmstepd.scope/job_3/step_0\n",
                step(3, "0"),
            ),
        ] {
            assert_eq!(JobStep::parse(text), found, "{text}");
        }
    }

    #[test]
    fn groups_that_a_user_can_make_are_no_jobs() {
        let session = "/user.slice/user-1000.slice/user@1000.service";
        for path in [
            format!("{session}/app.slice/slurmstepd.scope/job_9/step_0/user/task_0"),
            format!("{session}/slurmstepd.scope/job_9/step_0"),
            format!("{session}/system.slice/slurmstepd.scope/job_9/step_0"),
            format!("{session}/slurm/uid_1000/job_9/step_0"),
            format!("{session}/n1_slurmstepd.scope/job_9"),
            "/user.slice/slurmstepd.scope/job_9/step_0".into(),
            "/user.slice/user-1000.slice/slurmstepd.scope/job_9/step_0".into(),
            "/user.slice/user-1000.slice/session-3.scope/slurmstepd.scope/job_9".into(),
            "/machine.slice/libpod-1.scope/system.slice/slurmstepd.scope/job_9".into(),
            "/machine.slice/slurmstepd.scope/job_9".into(),
            "/docker/0123/system.slice/slurmstepd.scope/job_9/step_0".into(),
            "/docker/0123/slurm/uid_1000/job_9/step_0".into(),
            "/system.slice/x.service/slurmstepd.scope/job_9/step_0".into(),
            "/system.slice/evil-slurmstepd.scope/job_9".into(),
            "/system.slice/_slurmstepd.scope/job_9".into(),
            "/system.slice/slurmstepd.scope/system/job_9/step_0".into(),
            "/system.slice/slurmstepd.scope/slurmd/job_9/step_0".into(),
            "/system.slice/slurmstepd.scope/job_+9/step_0".into(),
            "/system.slice/slurmstepd.scope/job_09/step_0".into(),
            "/system.slice/slurmstepd.scope/job_99999999999/step_0".into(),
            "/system.slice/slurmstepd.scope//job_9/step_0".into(),
            "//system.slice/slurmstepd.scope/job_9/step_0".into(),
            "/slurmstepd.scope/job_9/step_0".into(),
            "/slurm/job_9/step_0".into(),
            "/slurm/uid_x/job_9/step_0".into(),
            "/slurm_/uid_1/job_9/step_0".into(),
            "/slurm/uid_1/x/job_9/step_0".into(),
            "/user.slice/slurm/uid_1/job_9".into(),
            "/../user@1000.service/slurmstepd.scope/job_9".into(),
        ] {
            for text in [format!("0::{path}\n"), format!("7:devices:{path}\n0::/\n")] {
                let found = Belongs::parse(&text, &Roots::default(), &GroupNames::default());
                assert_eq!(found, Belongs::Nobody, "{text}");
            }
        }
    }

    #[test]
    fn what_lies_below_the_groups_of_a_job_is_that_jobs() {
        let text = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/slurmstepd.scope/job_9/step_1\n";
        assert_eq!(JobStep::parse(text), step(7, "0"));
        let text =
            "0::/system.slice/slurmstepd.scope/job_7/x/system.slice/slurmstepd.scope/job_9\n";
        assert_eq!(JobStep::parse(text), step(7, ""));
    }

    #[test]
    fn lines_that_no_kernel_writes_prove_nothing() {
        let own = "0::/system.slice/slurmstepd.scope/job_7/step_0\n";
        for text in [
            format!("3:devices:/user.slice/a\n{own}{own}"),
            format!("3:devices:/user.slice/a\nb\n{own}"),
            format!("x:devices:/user.slice\n{own}"),
            "3:devices:/a\n4:devices:/slurm/uid_1/job_7/step_0\n0::/\n".into(),
        ] {
            assert_eq!(
                Belongs::parse(&text, &Roots::default(), &GroupNames::default()),
                Belongs::Nobody,
                "{text}"
            );
        }
        let two = "3:devices:/slurm/uid_1/job_7/step_0\n4:freezer:/slurm/uid_1/job_8/step_0\n";
        assert!(matches!(
            Belongs::parse(two, &Roots::default(), &GroupNames::default()),
            Belongs::Unclear(_)
        ));
    }

    #[test]
    fn in_containers_and_namespaces_paths_begin_elsewhere() {
        let of = |first: &str, path: &str| {
            let roots = Roots::of_first_process(&format!("0::{first}\n"));
            Belongs::parse(&format!("0::{path}\n"), &roots, &GroupNames::default())
        };
        let seven = Belongs::Step(step(7, "0").unwrap());
        let slurm = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0";
        for (first, root) in [
            ("/init.scope", ""),
            ("/", ""),
            (
                "/docker.slice/docker-1.scope/init.scope",
                "/docker.slice/docker-1.scope",
            ),
            ("/docker/1", "/docker/1"),
            ("/../../init.scope", "/../.."),
        ] {
            assert_eq!(of(first, &format!("{root}/{slurm}")), seven, "{first}");
            let user = format!("{root}/user.slice/user-1.slice/user@1.service/{slurm}");
            assert_eq!(of(first, &user), Belongs::Nobody, "{first}");
        }
        // A container of its own beside Slurm's machine.
        assert_eq!(
            of("/init.scope", &format!("/docker/1/{slurm}")),
            Belongs::Nobody
        );
        let named = Roots::default().with("/kubepods.slice/pod1");
        let text = format!("0::/kubepods.slice/pod1/{slurm}\n");
        assert_eq!(Belongs::parse(&text, &named, &GroupNames::default()), seven);
        // gpuosd in a namespace that begins at its own unit.
        let hidden = of("/../../init.scope", "/../slurmstepd.scope/job_7/step_0");
        assert!(matches!(hidden, Belongs::Unclear(_)), "{hidden:?}");
    }

    /// slurmctld says whose it is, and nobody else: what it has not told is nobody's and no stranger's.
    #[test]
    fn a_group_that_is_named_by_slurms_own_id_is_that_of_the_job_that_has_it() {
        let text = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n";
        let names = GroupNames::default();
        let of = |text: &str| Belongs::parse(text, &Roots::default(), &names);
        let Belongs::Unclear(why) = of(text) else {
            panic!("{:?}", of(text))
        };
        assert!(
            why.contains("CgroupJobIdPaths=yes") && why.contains("sEKNKTV3WPV500"),
            "{why}"
        );
        names.learn("sEKNKTV3WPV500", &7.into());
        assert_eq!(of(text), Belongs::Step(step(7, "0").unwrap()));
        for (path, found) in [
            (
                "n2_slurmstepd.scope/sEKNKTV3WPV500/step_batch/slurm",
                "batch",
            ),
            (
                "slurmstepd.scope/sEKNKTV3WPV500/step_extern/user (deleted)",
                "extern",
            ),
            ("slurmstepd.scope/sEKNKTV3WPV500", ""),
            ("slurmstepd.scope/sEKNKTV3WPV500/x/job_9/step_1", ""),
        ] {
            let text = format!("0::/system.slice/{path}\n");
            assert_eq!(of(&text), Belongs::Step(step(7, found).unwrap()), "{path}");
        }
        // Another's id, of which nothing is told, and one that no job has.
        for name in ["sEKNKTV3WPV600", "s0000000000000"] {
            let found = of(&text.replace("sEKNKTV3WPV500", name));
            assert!(matches!(found, Belongs::Unclear(_)), "{found:?}");
        }
        assert_eq!(of(&text.replace("sEKN", "sekn")), Belongs::Nobody);
        // Whoever makes such a group elsewhere has made nobody's: an id can be read by everybody.
        for path in [
            "/user.slice/user-1.slice/user@1.service/slurmstepd.scope/sEKNKTV3WPV500/step_0",
            "/user.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0",
            "/slurm/uid_1000/sEKNKTV3WPV500/step_0",
            "/system.slice/x.service/slurmstepd.scope/sEKNKTV3WPV500",
            "/system.slice/slurmstepd.scope/system/sEKNKTV3WPV500",
        ] {
            assert_eq!(of(&format!("0::{path}\n")), Belongs::Nobody, "{path}");
        }
        let two = "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0\n7:devices:/slurm/uid_1/job_8/step_0\n";
        assert!(matches!(of(two), Belongs::Unclear(_)));
    }

    proptest::proptest! {
        #[test]
        fn nothing_below_a_users_slice_is_ever_a_job(
            path in "(/slurm|/slurmstepd.scope|/system.slice|/n_slurmstepd.scope|/uid_1|/job_[0-9]{0,4}|/step_[a-z0-9]{0,3}|/[.]{2}){0,9}"
        ) {
            let text = format!("0::/user.slice/user-1000.slice/user@1000.service{path}\n");
            proptest::prop_assert_eq!(Belongs::parse(&text, &Roots::default(), &GroupNames::default()), Belongs::Nobody);
        }

        #[test]
        fn any_text_is_read_without_panic(
            text: String,
            path in "(/slurm|/system.slice|/slurmstepd.scope|/job_[0-9]{0,12}|/step_[a-z0-9]{0,5}|:|\n){0,8}"
        ) {
            let roots = Roots::of_first_process(&text);
            Belongs::parse(&text, &roots, &GroupNames::default());
            Belongs::parse(&format!("1:devices:{path}"), &Roots::of_first_process(&path), &GroupNames::default());
        }
    }
}
