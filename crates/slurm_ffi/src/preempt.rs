//! Whose jobs others end by preemption, and for how long these go on then, by the records of the running slurmctld: what `scontrol update`
//! and `sacctmgr` have changed counts.
//!
//! It follows Slurm's own `preempt/partition_prio` and `preempt/qos`, which ask the same of these records when they choose. Each record is read
//! by reads that cannot fault, and only where Slurm's allocator has made it as large as the table says; of another one nothing is known.

use std::ffi::{CString, c_int, c_void};

use crate::api::{self, Api, symbol};
use crate::layout::Fields;
use crate::mem::{self, read, read_str};
use crate::sizes;

/// The longest name that is read, in bytes.
const LONGEST: usize = 1024;

/// slurm.h's PREEMPT_MODE_*, the same in every known release.
const REQUEUE: u16 = 0x2;
const CANCEL: u16 = 0x8;
const WITHIN: u16 = 0x4000;
/// "Not set" in a partition's record; in that of a QOS it is 0.
const NO_VAL16: u16 = 0xfffe;

/// Where a job is to run and for whom, as its description says it: empty texts where that says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Partitions, with commas between them.
    pub partitions: &'a str,
    /// QOS; since 24.11 several, with commas between them.
    pub qos: &'a str,
    /// The account.
    pub account: &'a str,
    /// Number of the user.
    pub user: u32,
}

/// How long jobs of a partition or a QOS go on when others preempt them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grace {
    /// `partition low` or `QOS low`.
    pub of: String,
    /// Seconds; 0: they end without notice.
    pub seconds: u32,
}

/// Where all that stands in one release.
#[derive(Clone, Copy, Debug)]
pub struct Preemption {
    kind: usize,
    usual: usize,
    part: Part,
    qos: Qos,
    assoc: Assoc,
}

/// In `part_record_t`.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: usize,
    grace: usize,
    mode: usize,
    tier: usize,
    nodes: usize,
    whole: usize,
}

/// In `slurmdb_qos_rec_t`.
#[derive(Clone, Copy, Debug)]
struct Qos {
    id: usize,
    name: usize,
    grace: usize,
    mode: usize,
    preempts: usize,
    whole: usize,
}

/// In `slurmdb_assoc_rec_t`.
#[derive(Clone, Copy, Debug)]
struct Assoc {
    account: usize,
    partition: usize,
    user: usize,
    whole: usize,
}

impl Preemption {
    /// The offsets of one release; `None` where the table, one that a site made with an older gpuos, lacks some.
    pub fn of(fields: &Fields) -> Option<Preemption> {
        let at = |of: &str, field: &str| fields.offset(of, field).ok();
        let (part, qos, assoc) = ("part_record", "slurmdb_qos_rec", "slurmdb_assoc_rec");
        Some(Preemption {
            kind: at("slurm_conf", "preempt_type")?,
            usual: at("slurm_conf", "preempt_mode")?,
            part: Part {
                name: at(part, "name")?,
                grace: at(part, "grace_time")?,
                mode: at(part, "preempt_mode")?,
                tier: at(part, "priority_tier")?,
                nodes: at(part, "node_bitmap")?,
                whole: fields.size(part).ok()?,
            },
            qos: Qos {
                id: at(qos, "id")?,
                name: at(qos, "name")?,
                grace: at(qos, "grace_time")?,
                mode: at(qos, "preempt_mode")?,
                preempts: at(qos, "preempt_bitstr")?,
                whole: fields.size(qos).ok()?,
            },
            assoc: Assoc {
                account: at(assoc, "acct")?,
                partition: at(assoc, "partition")?,
                user: at(assoc, "uid")?,
                whole: fields.size(assoc).ok()?,
            },
        })
    }

    /// How long a job goes on that is preempted, in each of its partitions or QOS where others end jobs; nothing where they do not, or
    /// that is not known. Without a QOS in its description that is the one which slurmctld gives to it.
    ///
    /// # Safety
    /// Called in slurmctld under its read lock of partitions, and without any lock of its association manager: for a QOS it takes that one's
    /// read locks, as slurmctld does for every job that it takes.
    pub unsafe fn grace(&self, asked: Asked<'_>) -> Vec<Grace> {
        let Some((kind, usual)) = self.configured() else {
            return Vec::new();
        };
        // SAFETY: by the caller.
        unsafe {
            match kind.strip_prefix("preempt/").unwrap_or(&kind) {
                "partition_prio" => self.of_partitions(asked.partitions, usual),
                "qos" => self.of_qos(asked, usual).unwrap_or_default(),
                _ => Vec::new(),
            }
        }
    }

    /// PreemptType and PreemptMode; `None`: nobody is preempted, or they cannot be read.
    fn configured(&self) -> Option<(String, u16)> {
        let conf = symbol(c"slurm_conf")? as usize;
        let mode = read::<u16>(conf.checked_add(self.usual)?)?;
        let kind = read::<usize>(conf.checked_add(self.kind)?)?;
        Some((read_str(kind, LONGEST)?, mode)).filter(|_| mode != 0)
    }

    /// # Safety
    /// Called in slurmctld under its read lock of partitions.
    unsafe fn of_partitions(&self, names: &str, usual: u16) -> Vec<Grace> {
        let all = words(names).filter_map(|name| {
            let own = self.part.at(api::find_part_record(name)? as usize)?;
            let lower = ends(match own.mode {
                NO_VAL16 => usual,
                mode => mode,
            });
            let mut above = false;
            // SAFETY: slurmctld's list of partitions, under the lock of the caller.
            unsafe {
                for_each(c"part_list", &mut |record| {
                    above |= (self.part.at(record))
                        .is_some_and(|it| it.tier > own.tier && overlap(it.nodes, own.nodes));
                });
            }
            (lower && above).then(|| Grace {
                of: format!("partition {name}"),
                seconds: own.grace,
            })
        });
        all.collect()
    }

    /// # Safety
    /// As [`Preemption::grace`].
    unsafe fn of_qos(&self, asked: Asked<'_>, usual: u16) -> Option<Vec<Grace>> {
        // SAFETY: by the caller.
        let _locked = unsafe { Locked::take() }?;
        let mut all = Vec::new();
        // SAFETY: the association manager's list of QOS, under its read lock.
        unsafe { for_each(c"assoc_mgr_qos_list", &mut |at| all.extend(self.qos.at(at))) };
        let named: Vec<&OneQos> = match words(asked.qos).next() {
            Some(_) => words(asked.qos)
                .filter_map(|name| all.iter().find(|one| one.name.eq_ignore_ascii_case(name)))
                .collect(),
            // SAFETY: under those locks.
            None => match unsafe { self.default_qos(asked) }? {
                Named::Number(id) => all.iter().filter(|one| one.id == id).collect(),
                Named::Name(name) => all.iter().filter(|one| one.name == name).collect(),
            },
        };
        let ended = named.into_iter().filter(|own| {
            let others = all.iter().filter(|other| other.id != own.id);
            let mode = if own.mode == 0 { usual } else { own.mode };
            let within = (own.mode | usual) & WITHIN != 0;
            ends(mode) && (within || others.into_iter().any(|it| bit(it.preempts, own.id)))
        });
        let grace = ended.map(|own| Grace {
            of: format!("QOS {}", own.name),
            seconds: own.grace,
        });
        Some(grace.collect())
    }

    /// The QOS of a job that names none, by the two functions that slurmctld itself asks: the default of the user's association, of the
    /// cluster, or `normal`.
    ///
    /// # Safety
    /// Called in slurmctld under the read locks of [`Locked`].
    unsafe fn default_qos(&self, asked: Asked<'_>) -> Option<Named> {
        type Fill =
            unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut *mut c_void, bool) -> c_int;
        type Default = unsafe extern "C" fn(*mut c_void, *mut c_void);
        let (fill, default) = (
            symbol(c"assoc_mgr_fill_in_assoc")?,
            symbol(c"assoc_mgr_get_default_qos_info")?,
        );
        // Slurm has accounts in small letters. The default partition of an association is the first that the job names.
        let account = CString::new(asked.account.to_ascii_lowercase()).ok()?;
        let partition = CString::new(words(asked.partitions).next().unwrap_or_default()).ok()?;
        let or_null = |text: &CString| match text.is_empty() {
            true => std::ptr::null(),
            false => text.as_ptr(),
        };
        let (mut key, mut found) = (Blank::new(self.assoc.whole)?, std::ptr::null_mut());
        key.put(self.assoc.account, or_null(&account));
        key.put(self.assoc.partition, or_null(&partition));
        key.put(self.assoc.user, asked.user);
        let mut qos = Blank::new(self.qos.whole)?;
        // SAFETY: Slurm's functions with the signatures of src/common/assoc_mgr.h, the same in every release from 22.05.0 to 26.05.3 (read).
        // Both records are as large as the table says, and zero but for the key; the first is filled with pointers into Slurm's own records,
        // which nobody frees or follows here, the texts of the key outlive the call, and `true` says that the locks are held.
        unsafe {
            let fill: Fill = std::mem::transmute::<*mut c_void, Fill>(fill);
            let default: Default = std::mem::transmute::<*mut c_void, Default>(default);
            fill(std::ptr::null_mut(), key.place(), 0, &raw mut found, true);
            if !found.is_null() {
                sizes::exactly(found as usize, "slurmdb_assoc_rec", self.assoc.whole).ok()?;
            }
            default(found, qos.place());
        }
        let at = qos.place() as usize;
        match read::<u32>(at + self.qos.id)? {
            0 => Some(Named::Name(read_str(
                read::<usize>(at + self.qos.name)?,
                LONGEST,
            )?)),
            id => Some(Named::Number(id)),
        }
    }
}

enum Named {
    Number(u32),
    Name(String),
}

struct OnePart {
    tier: u16,
    mode: u16,
    grace: u32,
    /// Where its `bitstr_t` stands.
    nodes: usize,
}

struct OneQos {
    id: u32,
    name: String,
    mode: u16,
    grace: u32,
    /// Where its `bitstr_t` stands.
    preempts: usize,
}

impl Part {
    fn at(&self, record: usize) -> Option<OnePart> {
        if sizes::allocated(record) != Some(self.whole) {
            return None;
        }
        // A name shows that this is a partition's record.
        read_str(read::<usize>(record + self.name)?, LONGEST)?;
        Some(OnePart {
            tier: read(record + self.tier)?,
            mode: read(record + self.mode)?,
            grace: read(record + self.grace)?,
            nodes: read(record + self.nodes)?,
        })
    }
}

impl Qos {
    fn at(&self, record: usize) -> Option<OneQos> {
        if sizes::allocated(record) != Some(self.whole) {
            return None;
        }
        Some(OneQos {
            id: read(record + self.id)?,
            name: read_str(read::<usize>(record + self.name)?, LONGEST)?,
            mode: read(record + self.mode)?,
            grace: read(record + self.grace)?,
            preempts: read(record + self.preempts)?,
        })
    }
}

/// A record of Slurm's that is zero but for what is put into it.
struct Blank(Vec<u64>);

impl Blank {
    /// `None`: no record of Slurm's is so large.
    fn new(whole: usize) -> Option<Blank> {
        (whole <= 4096).then(|| Blank(vec![0; whole.div_ceil(8)]))
    }

    fn put<T: Copy>(&mut self, offset: usize, value: T) {
        if offset + size_of::<T>() <= self.0.len() * 8 {
            // SAFETY: within the words of the vector, by the line above.
            unsafe {
                self.0
                    .as_mut_ptr()
                    .byte_add(offset)
                    .cast::<T>()
                    .write_unaligned(value)
            };
        }
    }

    fn place(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Read locks of the association manager: of associations, QOS and users. Given back when dropped.
struct Locked(unsafe extern "C" fn(*mut u32));

impl Locked {
    /// assoc_mgr_lock_t is a level for each of associations, files, QOS, resources, TRES, users and wckeys in every release; this is room
    /// enough, and READ_LOCK is 1.
    const LEVELS: [u32; 16] = [1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// # Safety
    /// Called in slurmctld without any of these locks.
    unsafe fn take() -> Option<Locked> {
        type Lock = unsafe extern "C" fn(*mut u32);
        let (lock, unlock) = (symbol(c"assoc_mgr_lock")?, symbol(c"assoc_mgr_unlock")?);
        // SAFETY: Slurm's functions with the signatures of src/common/assoc_mgr.h, which only read the levels.
        unsafe {
            let lock: Lock = std::mem::transmute::<*mut c_void, Lock>(lock);
            let mut levels = Locked::LEVELS;
            lock(levels.as_mut_ptr());
            Some(Locked(std::mem::transmute::<*mut c_void, Lock>(unlock)))
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let mut levels = Locked::LEVELS;
        // SAFETY: taken by this thread, with the same levels.
        unsafe { (self.0)(levels.as_mut_ptr()) };
    }
}

/// Hands the address of each record of a global list of slurmctld to `each`.
///
/// # Safety
/// `list` is the name of such a list or of nothing, and the caller has its lock.
unsafe fn for_each(list: &std::ffi::CStr, each: &mut dyn FnMut(usize)) {
    unsafe extern "C" fn one(item: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: `argument` is the closure reference below.
        let each = unsafe { &mut *argument.cast::<&mut dyn FnMut(usize)>() };
        each(item as usize);
        0
    }
    let (Some(place), Ok(api)) = (symbol(list), Api::get()) else {
        return;
    };
    let mut each = each;
    if let Some(list) = read::<usize>(place as usize).filter(|list| *list != 0) {
        // SAFETY: by the caller; `one` gets what it expects, and nothing in the closures of this file unwinds.
        unsafe { (api.list_for_each)(list as *mut c_void, one, (&raw mut each).cast()) };
    }
}

fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|word| !word.is_empty())
}

fn ends(mode: u16) -> bool {
    mode & (REQUEUE | CANCEL) != 0
}

/// The words of a `bitstr_t`: none where nothing of that kind stands there.
fn bits(at: usize) -> Vec<u64> {
    /// As in [`crate::bits`]: a mark, the number of bits, and the bits.
    const MAGIC: u64 = 0x4243_4445;
    /// More bits than Slurm has nodes or QOS.
    const MOST: u64 = 1 << 20;
    let bytes = || {
        let (magic, count) = (read::<u64>(at)?, read::<u64>(at.checked_add(8)?)?);
        let words = (magic == MAGIC && count <= MOST).then_some(count.div_ceil(64) as usize)?;
        mem::read_bytes(at + 16, words * 8)
    };
    let bytes = bytes().unwrap_or_default();
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

fn bit(at: usize, number: u32) -> bool {
    let word = bits(at).get(number as usize / 64).copied().unwrap_or(0);
    word >> (number % 64) & 1 == 1
}

fn overlap(one: usize, other: usize) -> bool {
    let (one, other) = (bits(one), bits(other));
    one.iter().zip(&other).any(|(one, other)| one & other != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::Release;

    #[test]
    fn every_release_has_the_places() {
        let versions = include_str!("../data/versions.txt");
        let known = versions.lines().filter_map(Release::parse);
        for release in known.chain([Release::new(26, 5, 5)]) {
            let fields = Fields::of(release, None).expect("rows");
            let places = Preemption::of(&fields);
            assert!(
                places.is_some_and(|it| it.qos.whole < 4096 && it.assoc.whole < 4096),
                "{release}"
            );
        }
    }

    #[test]
    fn a_program_that_is_not_slurmctld_preempts_nobody() {
        let fields = Fields::of(Release::new(24, 11, 5), None).expect("rows");
        let places = Preemption::of(&fields).expect("places");
        let asked = Asked {
            partitions: "low",
            qos: "",
            account: "",
            user: 0,
        };
        // SAFETY: nothing of slurmctld is here, so nothing is called.
        assert_eq!(unsafe { places.grace(asked) }, []);
    }

    #[test]
    fn bits_are_read_where_there_are_some() {
        let set = [0x4243_4445_u64, 70, 1 << 3, 1 << 5, u64::MAX];
        let other = [0x4243_4445_u64, 64, 1 << 3];
        let apart = [0x4243_4445_u64, 64, 1 << 4];
        let odd = [7_u64, 64, u64::MAX];
        let large = [0x4243_4445_u64, u64::MAX, u64::MAX];
        let at = |words: &[u64]| words.as_ptr() as usize;
        for (number, is_set) in [
            (0, false),
            (3, true),
            (69, true),
            (68, false),
            (4000, false),
        ] {
            assert_eq!(bit(at(&set), number), is_set, "{number}");
        }
        assert!(overlap(at(&set), at(&other)) && !overlap(at(&set), at(&apart)));
        for nothing in [0, 8, at(&odd), at(&large)] {
            assert!(!bit(nothing, 0) && !overlap(nothing, at(&set)));
        }
    }

    #[test]
    fn a_mode_that_ends_jobs_is_seen_with_what_stands_beside_it() {
        for (mode, ended) in [
            (0, false),
            (1, false),
            (0x8001, false),
            (2, true),
            (8, true),
            (0xc002, true),
        ] {
            assert_eq!(ends(mode), ended, "{mode:#x}");
        }
    }
}
