//! Slurm's groups of version 2, as its daemon sees them: where steps are, and the process that asks.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ask::{self, Answer};
use super::{MOST, StepGroup, StepGroups, folders};
use crate::slurm::control_groups::{is_slice, may_be_slurms};
use crate::slurm::group_names::{GroupNames, is_sluid, untold};
use crate::steps::job_processes::JobStep;

/// The process takes milliseconds; one that was caught by a freezer in between is ended after this.
const LIMIT: Duration = Duration::from_secs(1);
/// Slurm's groups of a step are two levels deep; a container may add some.
const DEEP: usize = 6;

/// Whether a hierarchy of version 2 is mounted here.
pub(super) fn mounted(root: &Path) -> bool {
    root.join("cgroup.controllers").is_file()
}

/// Slurm's scope: `NODE_slurmstepd.scope` where several slurmd run on one machine, else `slurmstepd.scope`, in
/// system.slice or the `CgroupSlice` of cgroup.conf. Never in a slice of users' sessions or of containers, where others make
/// groups.
pub(in crate::steps) fn scope(root: &Path, node: &str) -> Option<PathBuf> {
    let named = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str().map(str::to_owned))
    };
    let slices = |folder: &Path| {
        let all = folders(folder, "").into_iter();
        all.filter(|path| named(path).is_some_and(|name| is_slice(&name)))
            .collect::<Vec<_>>()
    };
    let mut all = slices(root);
    all.retain(|path| named(path).is_some_and(|name| may_be_slurms(&name)));
    let nested: Vec<PathBuf> = all.iter().flat_map(|slice| slices(slice)).collect();
    all.extend(nested);
    let names = [
        format!("{node}_slurmstepd.scope"),
        "slurmstepd.scope".into(),
    ];
    let named = names
        .iter()
        .flat_map(|name| all.iter().map(move |slice| slice.join(name)));
    named.into_iter().find(|path| path.is_dir())
}

/// Steps with processes of users. `names` has the jobs of groups that Slurm has given no number.
///
/// # Errors
/// Why nothing is known: a clause.
pub(super) fn steps(root: &Path, node: &str, names: &GroupNames) -> Result<StepGroups, String> {
    let scope = scope(root, node).ok_or_else(|| {
        format!(
            "slurmstepd.scope is not below {}: no job has run yet, or Slurm's control groups are elsewhere (--cgroup)",
            root.display()
        )
    })?;
    let (known, untold_of) = jobs(&scope, names);
    let steps = known.iter().flat_map(|job| folders(job, "step_"));
    let group = |folder: PathBuf| {
        let step = JobStep::of_path(folder.strip_prefix(root).ok()?.to_str()?, names)?;
        (!leaves(&folder).is_empty()).then_some(StepGroup { step, folder })
    };
    Ok(StepGroups {
        list: steps.filter_map(group).take(MOST).collect(),
        unclear: untold_of.map(|name| untold(&name)),
    })
}

/// The groups of jobs, by number and by Slurm's own id, and the name of one of which it is not known whose it is, if there is such a one with
/// processes of users.
fn jobs(scope: &Path, names: &GroupNames) -> (Vec<PathBuf>, Option<String>) {
    let mut known = folders(scope, "job_");
    let mut unclear = None;
    for folder in folders(scope, "s") {
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| is_sluid(name)).map(str::to_owned) else {
            continue;
        };
        if names.job(&name).is_some() {
            known.push(folder);
        } else if folders(&folder, "step_")
            .iter()
            .any(|step| !leaves(step).is_empty())
        {
            unclear = Some(name);
        }
    }
    (known, unclear)
}

/// The groups of a step in which users' processes are. Only those can be entered.
fn leaves(step: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = vec![step.join("user")];
    for _ in 0..DEEP {
        let mut below = Vec::new();
        for folder in next {
            let processes = fs::read(folder.join("cgroup.procs")).unwrap_or_default();
            if processes.is_empty() {
                below.extend(folders(&folder, ""));
            } else {
                found.push(folder);
            }
        }
        next = below;
    }
    found.sort();
    found
}

/// Asks the kernel: `program` with [`ask::FLAG`] enters the step's groups.
///
/// # Errors
/// [`ErrorKind::NotFound`]: the step has ended. [`ErrorKind::Interrupted`]: it cannot be asked now, and may be later.
/// Else it cannot be asked here at all.
pub(super) fn allowed(
    program: &Path,
    scratch: &Path,
    step: &Path,
    minors: &[u32],
) -> io::Result<BTreeSet<u32>> {
    let leaves = leaves(step);
    if leaves.is_empty() {
        return Err(ErrorKind::NotFound.into());
    }
    let later = |why: &str| Err(io::Error::new(ErrorKind::Interrupted, why));
    let is_frozen = "its control group is frozen: the job is suspended";
    if leaves.iter().any(|leaf| ask::frozen(leaf)) {
        return later(is_frozen);
    }
    let file = scratch.join(format!(".gpuosd-asks-{}", std::process::id()));
    let list: Vec<String> = minors.iter().map(u32::to_string).collect();
    let mut process = Command::new(program)
        .arg(ask::FLAG)
        .arg(&file)
        .arg(list.join(","))
        .args(&leaves)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| io::Error::other(format!("{}: {e}", program.display())))?;
    let said = read_answer(&mut process);
    // One that was killed may have left it.
    let _ = fs::remove_file(&file);
    match said?.as_deref().and_then(Answer::parse) {
        Some(Answer::Allowed(minors)) => Ok(minors),
        Some(Answer::Gone) => Err(ErrorKind::NotFound.into()),
        Some(Answer::Frozen) => later(is_frozen),
        Some(Answer::Refused) => Err(super::may_not()),
        // Its groups are not as Slurm made them; those of others may be: a container runtime leaves ones that
        // cannot be entered.
        Some(Answer::Failed(why)) => later(&why),
        None => later("the process that asks was ended before it could answer"),
    }
}

/// What the process says; `None` when it has to be ended.
fn read_answer(process: &mut Child) -> io::Result<Option<String>> {
    let began = Instant::now();
    while process.try_wait()?.is_none() {
        if began.elapsed() >= LIMIT {
            process.kill()?;
            process.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    }
    let mut text = String::new();
    // Its one line is shorter than a pipe holds.
    if let Some(mut pipe) = process.stdout.take() {
        pipe.read_to_string(&mut text)?;
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_where_releases_of_slurm_keep_them() {
        for scope in [
            "system.slice/slurmstepd.scope",
            "system.slice/n1_slurmstepd.scope",
            "gpu.slice/gpu-slurm.slice/slurmstepd.scope",
        ] {
            let root = tempfile::tempdir().unwrap();
            let task = |step: &str| root.path().join(scope).join(step);
            let with = |step: &str, processes: &str| {
                fs::create_dir_all(task(step)).unwrap();
                fs::write(task(step).join("cgroup.procs"), processes).unwrap();
            };
            with("system", "31\n");
            with("job_7/step_0/slurm", "40\n");
            with("job_7/step_0/user/task_0", "41\n");
            with("job_7/step_0/user/task_1/container", "42\n");
            with("job_7/step_extern/slurm", "43\n");
            with("job_7/step_extern/user/task_special", "");
            let steps = steps(root.path(), "n1", &GroupNames::default())
                .unwrap()
                .list;
            assert_eq!(steps.len(), 1, "{scope}");
            assert_eq!(
                (steps[0].step.job.number(), &steps[0].step.step[..]),
                (Some(7), "0")
            );
            let leaves = leaves(&steps[0].folder);
            let user = task("job_7/step_0/user");
            assert_eq!(leaves, [user.join("task_0"), user.join("task_1/container")]);
        }
    }

    #[test]
    fn the_scope_of_another_node_is_none_of_ours() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("system.slice/n2_slurmstepd.scope")).unwrap();
        assert!(
            steps(root.path(), "n1", &GroupNames::default())
                .unwrap_err()
                .contains("no job has run")
        );
    }

    #[test]
    fn a_scope_in_a_users_slice_is_none_of_slurms() {
        let root = tempfile::tempdir().unwrap();
        let step = "slurmstepd.scope/job_7/step_0/user/task_0";
        for slice in ["user.slice", "user.slice/user-1000.slice", "machine.slice"] {
            let task = root.path().join(slice).join(step);
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("cgroup.procs"), "41\n").unwrap();
        }
        assert!(
            steps(root.path(), "n1", &GroupNames::default())
                .unwrap_err()
                .contains("no job has run")
        );
    }

    #[test]
    fn steps_of_jobs_that_slurm_has_named_by_its_own_id_are_found_once_slurmctld_says_whose_they_are()
     {
        let root = tempfile::tempdir().unwrap();
        let scope = root.path().join("system.slice/slurmstepd.scope");
        for task in [
            "sEKNKTV3WPV500/step_0",
            "sEKNKTV3WPV600/step_batch",
            "job_9/step_1",
        ] {
            let task = scope.join(task).join("user/task_0");
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("cgroup.procs"), "41\n").unwrap();
        }
        // One that has ended, and no group of a job.
        fs::create_dir_all(scope.join("sEKNKTV3WPV700/step_0/user")).unwrap();
        fs::create_dir_all(scope.join("system")).unwrap();
        let names = GroupNames::default();
        let told = |names: &GroupNames| {
            let found = steps(root.path(), "n1", names).unwrap();
            let mut list: Vec<String> = found
                .list
                .iter()
                .map(|one| format!("{}.{}", one.step.job, one.step.step))
                .collect();
            list.sort();
            (list.join(" "), found.unclear)
        };
        let (list, unclear) = told(&names);
        assert_eq!(list, "9.1");
        assert!(unclear.unwrap().contains("CgroupJobIdPaths"));
        names.learn("sEKNKTV3WPV500", &7.into());
        let (list, unclear) = told(&names);
        assert_eq!(list, "7.0 9.1");
        assert!(unclear.unwrap().contains("sEKNKTV3WPV600"));
        names.learn("sEKNKTV3WPV600", &8.into());
        assert_eq!(told(&names), ("7.0 8.batch 9.1".into(), None));
    }

    #[test]
    fn a_frozen_group_is_not_entered_and_a_step_that_ended_is_gone() {
        let root = tempfile::tempdir().unwrap();
        let task = root.path().join("user/task_0");
        let allowed = || allowed(Path::new("/nonexistent"), root.path(), root.path(), &[0]);
        assert_eq!(allowed().unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("cgroup.procs"), "41\n").unwrap();
        fs::write(task.join("cgroup.freeze"), "1\n").unwrap();
        let frozen = allowed().unwrap_err();
        assert_eq!(frozen.kind(), ErrorKind::Interrupted, "{frozen}");
        fs::write(task.join("cgroup.freeze"), "0\n").unwrap();
        assert!(allowed().unwrap_err().to_string().contains("/nonexistent"));
    }

    #[test]
    fn one_that_is_held_or_killed_or_not_let_in_gives_no_answer() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("user/task_0")).unwrap();
        fs::write(root.path().join("user/task_0/cgroup.procs"), "41\n").unwrap();
        for (name, script, why) in [
            ("held", "exec sleep 60", "ended before"),
            ("killed", "kill -9 $$", "ended before"),
            ("stays-out", "echo failed /x: in use", "/x: in use"),
        ] {
            let program = root.path().join(name);
            fs::write(
                &program,
                format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n"),
            )
            .unwrap();
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let ask = || allowed(&program, root.path(), root.path(), &[0]).unwrap_err();
            let mut error = ask();
            // While another test forks, the script may still be open for writing there; and one that answers may come to that too late.
            let began = Instant::now();
            while !error.to_string().contains(why) && began.elapsed().as_secs() < 60 {
                error = ask();
            }
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{name}: {error}");
            assert!(error.to_string().contains(why), "{name}: {error}");
        }
    }
}
