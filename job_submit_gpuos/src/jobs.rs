//! Whether anybody has a name: the jobs that run or wait in this slurmctld.

use std::ffi::c_void;

use gpuos_placement::rules::Target;
use slurm_ffi::api::Api;
use slurm_ffi::handles::for_each_job;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::{read, read_str};
use slurm_ffi::sizes;

use crate::request::Offsets;

/// The most jobs that are looked at: slurmctld's lock is held meanwhile. Where there are more, nothing is said.
const MOST: usize = 2000;

/// The longest name that is read.
const LONGEST: usize = 1024;

/// How the entry of a job's class starts in its `spank_job_env`.
const CLASS: &str = "_SLURM_SPANK_OPTION_gpuos_gpuos_class=";

/// Where a job's names stand; absent where the table does not say.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    id: usize,
    user_id: usize,
    name: usize,
    user_name: usize,
    state: usize,
    whole: usize,
    /// In the description of a new job.
    own_name: usize,
}

impl Names {
    /// The offsets of one release.
    pub fn of(fields: &Fields) -> Option<Names> {
        let of = |field| fields.offset("job_record", field).ok();
        Some(Names {
            id: of("job_id")?,
            user_id: of("user_id")?,
            name: of("name")?,
            user_name: of("user_name")?,
            state: of("job_state")?,
            whole: fields.size("job_record").ok()?,
            own_name: fields.offset("job_descriptor", "name").ok()?,
        })
    }

    /// Which of the targets no job has, the one that is submitted included. `None` where that is not known: too many
    /// jobs, or one that cannot be read.
    ///
    /// # Safety
    /// Called by slurmctld in job_submit, under its job read lock.
    pub unsafe fn unnamed(
        &self,
        description: *mut c_void,
        offsets: &Offsets,
        targets: &[Target<'_>],
    ) -> Option<Vec<bool>> {
        let api = Api::get().ok()?;
        let own = text(description as usize + self.own_name);
        let is_own =
            |target: &Target| matches!(target, Target::Job(name) if own.as_deref() == Some(name));
        let mut unnamed: Vec<bool> = targets.iter().map(|target| !is_own(target)).collect();
        let (mut count, mut readable) = (0, true);
        let mut look = |record: *mut c_void| {
            count += 1;
            if count > MOST || !readable {
                return;
            }
            match self.names_of(record as usize) {
                Some(None) => {}
                Some(Some(names)) => {
                    for (target, unnamed) in targets.iter().zip(&mut unnamed) {
                        *unnamed &= match target {
                            Target::Job(name) => !names.iter().any(|one| one == name),
                            Target::Class(class) => !is_of_class(offsets, record, class),
                            _ => true,
                        };
                    }
                }
                None => readable = false,
            }
        };
        // SAFETY: the lock is the caller's promise; nothing in `look` unwinds.
        unsafe { for_each_job(api, &mut look) };
        (readable && count <= MOST).then_some(unnamed)
    }

    /// Number, name and user of a job; nothing of one that is over. Slurm often has a user by number only, and so have
    /// affinity rules: to look the name up would be to wait for a name service under slurmctld's lock.
    fn names_of(&self, record: usize) -> Option<Option<[String; 4]>> {
        if sizes::allocated(record) != Some(self.whole) {
            return None;
        }
        // slurm.h: JOB_RUNNING, JOB_SUSPENDED and JOB_PENDING are below, in the low byte.
        if read::<u32>(record + self.state)? & 0xff >= 3 {
            return Some(None);
        }
        let [name, user] = [self.name, self.user_name].map(|at| text(record + at));
        Some(Some([
            read::<u32>(record + self.id)?.to_string(),
            read::<u32>(record + self.user_id)?.to_string(),
            name.unwrap_or_default(),
            user.unwrap_or_default(),
        ]))
    }
}

fn text(place: usize) -> Option<String> {
    let at = read::<usize>(place).filter(|at| *at != 0)?;
    read_str(at, LONGEST)
}

fn is_of_class(offsets: &Offsets, record: *mut c_void, class: &str) -> bool {
    let env = offsets.record_env(record).unwrap_or_default();
    let mut own = env.iter().filter_map(|entry| entry.strip_prefix(CLASS));
    own.any(|own| own.eq_ignore_ascii_case(class))
}
