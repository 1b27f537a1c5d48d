//! For tests, in debug builds alone: every shift of the layout table, held against one slurmctld.
//!
//! `$GPUOS_SHIFTS` names a file. At the start each field that is used is moved, alone, with all that stand after it, or
//! as a compiler would move them, by 4 and 8 bytes in both directions and by 1 and 2 as a compiler would; what refuses
//! the table is written there. What no check at the start refuses is held against each job that comes.

use std::collections::HashSet;
use std::ffi::c_void;
use std::io::Write as _;
use std::path::PathBuf;

use slurm_ffi::api::Api;
use slurm_ffi::check::{self, Strings};
use slurm_ffi::layout::{self, Fields, Layout};
use slurm_ffi::release::Release;
use slurm_ffi::{mem, probe};

use crate::abi::source::Source;

/// A table that the checks at the start let pass.
struct Left {
    name: String,
    layout: Layout,
    strings: Strings,
}

/// All that were let pass.
pub struct Shifts {
    to: PathBuf,
    left: Vec<Left>,
    seen: HashSet<u32>,
}

impl Shifts {
    /// Tries all shifts, where a file for them is named.
    pub fn try_all(fields: &Fields, release: Release) -> Option<Shifts> {
        let mut all = Shifts {
            to: std::env::var_os("GPUOS_SHIFTS")?.into(),
            left: Vec::new(),
            seen: HashSet::new(),
        };
        for (structure, field) in layout::used() {
            for (kind, bytes) in [
                ("alone", &[-8, -4, 4, 8][..]),
                ("rest", &[-8, -4, 4, 8]),
                ("compiled", &[-8, -4, -2, -1, 1, 2, 4, 8]),
            ] {
                for bytes in bytes {
                    let mut shifted = fields.clone();
                    match kind {
                        "compiled" => {
                            let used = |name: &str| is_used(structure, name);
                            shifted.recompile(structure, field, *bytes, used);
                        }
                        _ => shifted.shift(structure, field, *bytes, kind == "rest"),
                    }
                    let name = format!("{structure}.{field} {kind} {bytes}");
                    if same(&shifted, fields, structure) {
                        all.log(&format!("nothing\t{name}\tno field of use moves"));
                        continue;
                    }
                    all.try_one(name, &shifted, release);
                }
            }
            // A field that changed places with the one after it.
            let names = fields.names(structure);
            let next = names.iter().skip_while(|name| *name != field).nth(1);
            let mut swapped = fields.clone();
            if let Some(next) = next
                && swapped.swap(structure, field, next)
            {
                all.try_one(
                    format!("{structure}.{field} swapped {next}"),
                    &swapped,
                    release,
                );
            }
        }
        all.log("done\t\t");
        Some(all)
    }

    fn try_one(&mut self, name: String, fields: &Fields, release: Release) {
        let made = Layout::of(fields).and_then(|layout| Ok((layout, Strings::of(fields)?)));
        let (layout, strings) = match made {
            Ok(made) => made,
            Err(why) => return self.log(&format!("table\t{name}\t{why}")),
        };
        match check::configuration(&layout).and_then(|_| probe::objects(fields, &layout, release)) {
            Err(why) => self.log(&format!("start\t{name}\t{why}")),
            Ok(()) => {
                self.log(&format!("left\t{name}\t"));
                self.left.push(Left {
                    name,
                    layout,
                    strings,
                });
            }
        }
    }

    /// Holds what is left against a job.
    pub fn check(&mut self, source: &Source<'_>, job: *mut c_void) {
        let Source { api, table, .. } = *source;
        let Some(id) = mem::read::<u32>(job as usize + source.layout.job.job_id) else {
            return;
        };
        if !self.seen.insert(id) {
            return;
        }
        let gpu = check::Gres::gpu(api);
        for one in &self.left {
            let checked = check::job(api, &one.layout, &one.strings, job, gpu)
                // SAFETY: called from job_test, under slurmctld's node write lock.
                .and_then(|()| unsafe { check::nodes(api, &one.layout, &one.strings, table, gpu) });
            self.log(&match checked {
                Ok(()) => format!("first\t{}\tjob {id}", one.name),
                Err(why) => format!("job\t{}\tjob {id}: {why}", one.name),
            });
        }
        self.log(&format!("looked\tjob {id}\t"));
    }

    /// Holds what is left against a job that cons_tres has just given its nodes and GPUs.
    pub fn check_allocated(&self, api: &Api, job: *mut c_void) {
        let gpu = check::Gres::gpu(api);
        for one in &self.left {
            let checked = check::job(api, &one.layout, &one.strings, job, gpu)
                .and_then(|()| check::held(&one.layout, job).map(drop));
            if let Err(why) = checked {
                self.log(&format!("second\t{}\t{why}", one.name));
            }
        }
    }

    fn log(&self, line: &str) {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.to);
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{line}");
        }
    }
}

fn is_used(structure: &str, field: &str) -> bool {
    layout::used().contains(&(structure, field))
}

/// Whether no field that is used stands elsewhere, nor has the structure another size.
fn same(shifted: &Fields, fields: &Fields, structure: &str) -> bool {
    let moved = |field: &str| shifted.offset(structure, field) != fields.offset(structure, field);
    let used = layout::used();
    let mut own = used.iter().filter(|(owner, _)| *owner == structure);
    shifted.size(structure) == fields.size(structure) && !own.any(|(_, field)| moved(field))
}
