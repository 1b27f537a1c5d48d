//! A small shell process that ends a lab when the process that owns it is gone, however it
//! went. It reads a pipe that only the owner holds: end of file means the owner is gone.
//!
//! The kernel's parent-death signal would not do: it fires when the *thread* that started the
//! child ends (tests run in short threads), and slurmstepd, which starts the jobs, does not
//! get it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::{Context, LabError};
use crate::process::MARK;
use crate::sys::{ChildSetup, View};

/// Arguments: id, folder of the lab, folder of cached suites.
const SCRIPT: &str = r#"
id=$1 dir=$2 cache=$3
read -r word
[ "$word" = keep ] && exit 0
kids() {
    for kid in $(cat /proc/"$1"/task/*/children 2>/dev/null); do
        echo "$kid"
        kids "$kid"
    done
}
own() {
    grep -lsz "^GPUOS_LAB_ID=$id\$" /proc/[0-9]*/environ
    grep -lszxF "SLURM_CONF=$dir/etc/slurm.conf" /proc/[0-9]*/environ |
        xargs -r grep -lsz "^SLURM_JOB_ID="
    grep -Els "/gpuos-lab-$id(/|\$)" /proc/[0-9]*/cgroup
    # slurmstepd writes its title over its environment.
    for comm in $(grep -ls "^slurmstepd" /proc/[0-9]*/comm); do
        find "${comm%comm}fd/" -lname "$dir/*" -print -quit 2>/dev/null
    done
}
members() {
    own | cut -d/ -f3 | while read -r pid; do
        echo "$pid"
        kids "$pid"
    done | sort -u
}
for round in 1 2 3 4 5 6 7 8 9 10; do
    pids=$(members)
    [ -z "$pids" ] && break
    kill -STOP $pids 2>/dev/null
    pids="$pids $(members)"
    kill -KILL $pids 2>/dev/null
    sleep 0.2
done
for tree in /sys/fs/cgroup/gpuos-lab-"$id" /sys/fs/cgroup/*/gpuos-lab-"$id"; do
    [ -d "$tree" ] && find "$tree" -depth -type d -exec rmdir {} \; 2>/dev/null
done
rm -rf -- /dev/gpuos-lab-"$id" "$cache"/*.tmp-"$id"
grep -qs "$id" "$dir"/lab.json && rm -rf -- "$dir"
exit 0
"#;

/// The guard of a lab that this process owns.
#[derive(Debug)]
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// Starts it.
    pub(crate) fn start(id: &str, dir: &Path, cache: &Path) -> Result<Guard, LabError> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "gpuos-lab-guard", id])
            .arg(dir)
            .arg(cache)
            .env_remove(MARK)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        ChildSetup {
            new_session: true,
            cgroups: Vec::new(),
            view: View::Host,
        }
        .apply(&mut command);
        let child = command
            .spawn()
            .context(|| "cannot start /bin/sh".to_string())?;
        Ok(Guard { child })
    }

    /// Lets the lab live on without an owner.
    pub(crate) fn release(mut self) {
        if let Some(pipe) = self.child.stdin.as_mut() {
            let _ = pipe.write_all(b"keep\n");
        }
        self.finish();
    }

    /// Has it clean up whatever is left, and waits for it.
    pub(crate) fn finish(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
