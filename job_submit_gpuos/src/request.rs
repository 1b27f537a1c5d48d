//! Reads what a job asks for out of Slurm's structures.
//!
//! Every read goes through [`slurm_ffi::mem`], which cannot fault, at the offsets of the exact
//! release. What looks wrong ends the reading: the job is then accepted unchecked.

use std::ffi::{c_char, c_void};

use slurm_ffi::api;
use slurm_ffi::handles::NO_VAL;
use slurm_ffi::layout::Fields;
use slurm_ffi::mem::{read, read_str};
use slurm_ffi::sizes;

use crate::memory::{NO_VAL64, PER_CPU};
use crate::shape::Shape;

/// The most entries of `spank_job_env`, and the longest of them, that are read.
const MAX_ENTRIES: u32 = 4096;
const MAX_ENTRY: usize = 64 * 1024;

/// Offsets of what is read of one structure.
#[derive(Clone, Copy, Debug)]
struct Strings {
    env: usize,
    env_size: usize,
    per_job: usize,
    per_node: usize,
    per_socket: usize,
    per_task: usize,
}

/// Offsets of the counts, which stand in the description of a job and in a record's details.
#[derive(Clone, Copy, Debug)]
struct Counts {
    min_nodes: usize,
    max_nodes: usize,
    tasks: usize,
    tasks_per_node: usize,
}

/// Where everything stands in this release.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    asked: Strings,
    asked_counts: Counts,
    shared: usize,
    /// Whether a job is requeued, in its description and in slurmctld's configuration; absent where the table does not say.
    requeue: Option<[usize; 2]>,
    /// Which component of a heterogeneous job a description is of; absent where the table does not say.
    component: Option<usize>,
    /// Whose job a description is of; absent where the table does not say.
    user: Option<usize>,
    /// What memory of each node or CPU a description asks for; absent where the table does not say.
    memory: Option<usize>,
    /// CPUs of each task, in 16 bits; absent where the table does not say.
    cpus_of_task: Option<usize>,
    record: Strings,
    record_details: usize,
    record_counts: Counts,
    /// Sizes of description, record and details.
    wholes: [usize; 3],
}

impl Strings {
    fn of(fields: &Fields, structure: &str) -> Result<Strings, String> {
        Ok(Strings {
            env: fields.offset(structure, "spank_job_env")?,
            env_size: fields.offset(structure, "spank_job_env_size")?,
            per_job: fields.offset(structure, "tres_per_job")?,
            per_node: fields.offset(structure, "tres_per_node")?,
            per_socket: fields.offset(structure, "tres_per_socket")?,
            per_task: fields.offset(structure, "tres_per_task")?,
        })
    }
}

impl Counts {
    fn of(fields: &Fields, structure: &str) -> Result<Counts, String> {
        Ok(Counts {
            min_nodes: fields.offset(structure, "min_nodes")?,
            max_nodes: fields.offset(structure, "max_nodes")?,
            tasks: fields.offset(structure, "num_tasks")?,
            tasks_per_node: fields.offset(structure, "ntasks_per_node")?,
        })
    }
}

impl Offsets {
    /// The offsets of one release; the error says what the table lacks.
    pub fn of(fields: &Fields) -> Result<Offsets, String> {
        Ok(Offsets {
            asked: Strings::of(fields, "job_descriptor")?,
            asked_counts: Counts::of(fields, "job_descriptor")?,
            shared: fields.offset("job_descriptor", "shared")?,
            requeue: fields
                .offset("job_descriptor", "requeue")
                .and_then(|own| Ok([own, fields.offset("slurm_conf", "job_requeue")?]))
                .ok(),
            component: fields.offset("job_descriptor", "het_job_offset").ok(),
            user: fields.offset("job_descriptor", "user_id").ok(),
            memory: fields.offset("job_descriptor", "pn_min_memory").ok(),
            cpus_of_task: fields.offset("job_descriptor", "cpus_per_task").ok(),
            record: Strings::of(fields, "job_record")?,
            record_details: fields.offset("job_record", "details")?,
            record_counts: Counts::of(fields, "job_details")?,
            wholes: [
                fields.size("job_descriptor")?,
                fields.size("job_record")?,
                fields.size("job_details")?,
            ],
        })
    }

    /// Entries of `spank_job_env` in a `job_desc_msg_t`. `None` when the memory does not look like one.
    pub fn asked_env(&self, description: *mut c_void) -> Option<Vec<String>> {
        self.is_description(description as usize)
            .then(|| env(description as usize, &self.asked))?
    }

    /// Whether a description is as large as the table says. slurmctld has some on its stack, of which nobody knows.
    fn is_description(&self, at: usize) -> bool {
        sizes::allocated(at).is_none_or(|size| size == self.wholes[0])
    }

    /// Where a `job_desc_msg_t` has what is asked of each node, a string on Slurm's heap.
    pub fn per_node(&self, description: *mut c_void) -> *mut *mut c_char {
        description.wrapping_byte_add(self.asked.per_node).cast()
    }

    /// The same as [`Offsets::asked_env`] of a `job_record_t`.
    pub fn record_env(&self, record: *mut c_void) -> Option<Vec<String>> {
        let is_record = sizes::allocated(record as usize) == Some(self.wholes[1]);
        is_record.then(|| env(record as usize, &self.record))?
    }

    /// What a `job_desc_msg_t` asks for.
    pub fn asked_shape(&self, description: *mut c_void) -> Option<Shape> {
        let at = description as usize;
        let mut shape = shape(at, &self.asked, at, &self.asked_counts)?;
        // JOB_SHARED_NONE: --exclusive.
        shape.exclusive = read::<u16>(at + self.shared)? == 0;
        Some(shape)
    }

    /// Whether Slurm starts a job of a `job_desc_msg_t` again after a node has failed: by its own word, else by JobRequeue of
    /// slurm.conf. `None`: that is not known.
    pub fn requeues(&self, description: *mut c_void) -> Option<bool> {
        let [own, usual] = self.requeue?;
        let conf = || api::symbol(c"slurm_conf").map(|conf| conf as usize);
        match read::<u16>((description as usize).checked_add(own)?)? {
            value if u32::from(value) == NO_VAL & 0xffff => flag(conf()?.checked_add(usual)?),
            value => as_flag(value),
        }
    }

    /// The number of the user whose job a `job_desc_msg_t` is of. `None`: that is not known.
    pub fn user(&self, description: *mut c_void) -> Option<u32> {
        read((description as usize).checked_add(self.user?)?)
    }

    /// Which component of a heterogeneous job a `job_desc_msg_t` is of, from 0; `None`: another kind of job, or not known.
    pub fn component(&self, description: *mut c_void) -> Option<u32> {
        let component = read((description as usize).checked_add(self.component?)?)?;
        Some(component).filter(|component| *component != NO_VAL)
    }

    /// MiB of memory that a `job_desc_msg_t` asks for on each node, `--mem`. `None`: it asks for none, for all of a node's, for some of each
    /// CPU or GPU, or that is not known.
    pub fn memory_mib(&self, description: *mut c_void) -> Option<u64> {
        let asked: u64 = read((description as usize).checked_add(self.memory?)?)?;
        // The bit of what is for each CPU is the highest, and set in NO_VAL64, too.
        (1..PER_CPU).contains(&asked).then_some(asked)
    }

    /// MiB of memory that a `job_desc_msg_t` asks for with each CPU, `--mem-per-cpu`, and the CPUs that the job has on each node for sure.
    /// `None`: it asks for none so, or that is not known.
    pub fn memory_of_cpus(&self, description: *mut c_void) -> Option<(u64, u64)> {
        let at = description as usize;
        let asked: u64 = read(at.checked_add(self.memory?)?)?;
        let mib = asked & !PER_CPU;
        let is_per_cpu = asked != mib && asked < NO_VAL64;
        let tasks = small_count(at.checked_add(self.asked_counts.tasks_per_node)?)?;
        let cpus = small_count(at.checked_add(self.cpus_of_task?)?)?;
        let cpus = u64::from(tasks.max(1)) * u64::from(cpus.max(1));
        is_per_cpu.then_some((mib, cpus))
    }

    /// What a `job_record_t` asks for.
    pub fn record_shape(&self, record: *mut c_void) -> Option<Shape> {
        let at = record as usize;
        let details = read::<usize>(at + self.record_details)?;
        if sizes::allocated(details) != Some(self.wholes[2]) {
            return None;
        }
        shape(at, &self.record, details, &self.record_counts)
    }
}

fn env(at: usize, strings: &Strings) -> Option<Vec<String>> {
    let array: usize = read(at.checked_add(strings.env)?)?;
    let count: u32 = read(at + strings.env_size)?;
    if count > MAX_ENTRIES || (array == 0 && count > 0) {
        return None;
    }
    let entry = |index: usize| {
        // An entry that is not UTF-8 or too long is none of ours: those come from checked options.
        let at: usize = read(array + index * size_of::<usize>())?;
        Some(read_str(at, MAX_ENTRY).unwrap_or_default())
    };
    (0..count as usize).map(entry).collect()
}

fn shape(strings_at: usize, strings: &Strings, counts_at: usize, counts: &Counts) -> Option<Shape> {
    let text = |offset: usize| match read::<usize>(strings_at + offset)? {
        0 => Some(None),
        at => read_str(at, MAX_ENTRY).map(|text| Some(text).filter(|text| !text.is_empty())),
    };
    let min_nodes = count(counts_at + counts.min_nodes)?;
    let max_nodes = count(counts_at + counts.max_nodes)?;
    if max_nodes != 0 && min_nodes > max_nodes {
        return None;
    }
    Some(Shape {
        min_nodes,
        max_nodes,
        tasks: count(counts_at + counts.tasks)?,
        tasks_per_node: small_count(counts_at + counts.tasks_per_node)?,
        exclusive: false,
        per_job: text(strings.per_job)?,
        per_node: text(strings.per_node)?,
        per_socket: text(strings.per_socket)?,
        per_task: text(strings.per_task)?,
    })
}

/// A count; "not set" and "infinite" are 0.
fn count(at: usize) -> Option<u32> {
    read::<u32>(at).map(|value| if value >= NO_VAL { 0 } else { value })
}

fn flag(at: usize) -> Option<bool> {
    as_flag(read(at)?)
}

/// 0 or 1; nothing else is known to mean something.
fn as_flag(value: u16) -> Option<bool> {
    match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// [`count`] in 16 bits.
fn small_count(at: usize) -> Option<u32> {
    let set = |value: &u16| u32::from(*value) < NO_VAL & 0xffff;
    read::<u16>(at).map(|value| Some(value).filter(set).map_or(0, u32::from))
}

/// What the job asks for once `update` is applied to `now`.
pub fn merged(now: Shape, update: &Shape) -> Shape {
    let text = |new: &Option<String>, old: Option<String>| new.clone().or(old);
    let number = |new: u32, old: u32| if new == 0 { old } else { new };
    Shape {
        min_nodes: number(update.min_nodes, now.min_nodes),
        max_nodes: number(update.max_nodes, now.max_nodes),
        tasks: number(update.tasks, now.tasks),
        tasks_per_node: number(update.tasks_per_node, now.tasks_per_node),
        exclusive: now.exclusive,
        per_job: text(&update.per_job, now.per_job),
        per_node: text(&update.per_node, now.per_node),
        per_socket: text(&update.per_socket, now.per_socket),
        per_task: text(&update.per_task, now.per_task),
    }
}

/// Whether an update touches anything that [`crate::check`] looks at.
pub fn touches(update: &Shape) -> bool {
    *update
        != Shape {
            exclusive: update.exclusive,
            ..Shape::default()
        }
}

#[cfg(test)]
mod tests {
    use slurm_ffi::release::Release;

    use super::*;

    #[test]
    fn every_release_of_the_table_has_the_fields() {
        for release in [
            Release::new(22, 5, 0),
            Release::new(23, 2, 3),
            Release::new(24, 11, 5),
            Release::new(26, 5, 5),
        ] {
            let fields = Fields::of(release, None).unwrap();
            let offsets = Offsets::of(&fields).unwrap_or_else(|e| panic!("{release}: {e}"));
            assert!(offsets.requeue.is_some(), "{release}");
            assert!(offsets.component.is_some(), "{release}");
            assert!(offsets.memory.is_some(), "{release}");
        }
    }

    /// A `job_desc_msg_t` of 24.11.5, made by hand.
    struct Fake {
        memory: Vec<u8>,
        kept: Vec<Vec<u8>>,
        array: Vec<usize>,
        offsets: Offsets,
    }

    impl Fake {
        fn new() -> Fake {
            let offsets = Offsets::of(&Fields::of(Release::new(24, 11, 5), None).unwrap()).unwrap();
            let mut fake = Fake {
                memory: vec![0; 2048],
                kept: Vec::new(),
                array: Vec::new(),
                offsets,
            };
            for at in [
                fake.offsets.asked_counts.min_nodes,
                fake.offsets.asked_counts.max_nodes,
                fake.offsets.asked_counts.tasks,
            ] {
                fake.put(at, &NO_VAL.to_ne_bytes());
            }
            fake
        }

        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn keep(&mut self, text: &[u8]) -> usize {
            let mut text = text.to_vec();
            text.push(0);
            self.kept.push(text);
            self.kept[self.kept.len() - 1].as_ptr() as usize
        }

        fn env(&mut self, entries: &[&[u8]]) {
            self.array = entries.iter().map(|entry| self.keep(entry)).collect();
            let (array, count) = (self.array.as_ptr() as usize, entries.len() as u32);
            self.put(self.offsets.asked.env, &array.to_ne_bytes());
            self.put(self.offsets.asked.env_size, &count.to_ne_bytes());
        }

        fn pointer(&mut self) -> *mut c_void {
            self.memory.as_mut_ptr().cast()
        }

        fn asked_env(&mut self) -> Option<Vec<String>> {
            let pointer = self.pointer();
            self.offsets.asked_env(pointer)
        }

        fn asked_shape(&mut self) -> Option<Shape> {
            let pointer = self.pointer();
            self.offsets.asked_shape(pointer)
        }
    }

    #[test]
    fn a_description_is_read() {
        let mut fake = Fake::new();
        fake.env(&[b"A=b", b"\xff\xfe", b"C=d"]);
        let text = fake.keep(b"gres/gpu:4");
        fake.put(fake.offsets.asked.per_node, &text.to_ne_bytes());
        fake.put(fake.offsets.asked_counts.min_nodes, &2u32.to_ne_bytes());
        let per_node = fake.offsets.asked_counts.tasks_per_node;
        fake.put(per_node, &4u16.to_ne_bytes());
        assert_eq!(fake.asked_env().unwrap(), ["A=b", "", "C=d"]);
        let shape = fake.asked_shape().unwrap();
        assert_eq!((shape.min_nodes, shape.max_nodes, shape.tasks), (2, 0, 0));
        assert_eq!(shape.tasks_per_node, 4);
        assert_eq!(shape.per_node.as_deref(), Some("gres/gpu:4"));
        assert!(shape.exclusive);
    }

    #[test]
    fn a_job_is_requeued_by_its_own_word() {
        let mut fake = Fake::new();
        let [own, _] = fake.offsets.requeue.unwrap();
        // Without a word it is slurmctld's, which is not here.
        for (word, means) in [
            (1u16, Some(true)),
            (0, Some(false)),
            (7, None),
            (0xfffe, None),
        ] {
            fake.put(own, &word.to_ne_bytes());
            let pointer = fake.pointer();
            assert_eq!(fake.offsets.requeues(pointer), means, "{word}");
        }
        assert_eq!(fake.offsets.requeues(std::ptr::null_mut()), None);
    }

    #[test]
    fn a_component_of_a_heterogeneous_job_is_told_from_other_jobs() {
        let mut fake = Fake::new();
        let at = fake.offsets.component.unwrap();
        for (word, means) in [(NO_VAL, None), (0, Some(0)), (2, Some(2))] {
            fake.put(at, &word.to_ne_bytes());
            let pointer = fake.pointer();
            assert_eq!(fake.offsets.component(pointer), means, "{word}");
        }
        assert_eq!(fake.offsets.component(std::ptr::null_mut()), None);
    }

    #[test]
    fn memory_of_each_node_is_told_from_that_of_each_cpu() {
        let mut fake = Fake::new();
        let at = fake.offsets.memory.unwrap();
        for (word, means) in [
            (0u64, None),
            (4096, Some(4096)),
            (1 << 63 | 4096, None),
            (u64::MAX - 1, None),
        ] {
            fake.put(at, &word.to_ne_bytes());
            let pointer = fake.pointer();
            assert_eq!(fake.offsets.memory_mib(pointer), means, "{word}");
        }
        assert_eq!(fake.offsets.memory_mib(std::ptr::null_mut()), None);
        let (tasks, cpus) = (
            fake.offsets.asked_counts.tasks_per_node,
            fake.offsets.cpus_of_task.unwrap(),
        );
        for (word, [on_node, of_task], means) in [
            (4096u64, [2u16, 4], None),
            (1 << 63 | 4096, [2, 4], Some((4096, 8))),
            (1 << 63 | 4096, [0, 0xfffe], Some((4096, 1))),
            (1 << 63 | 4096, [0xfffe, 3], Some((4096, 3))),
            (u64::MAX - 1, [2, 4], None),
            (u64::MAX, [2, 4], None),
        ] {
            fake.put(at, &word.to_ne_bytes());
            fake.put(tasks, &on_node.to_ne_bytes());
            fake.put(cpus, &of_task.to_ne_bytes());
            let pointer = fake.pointer();
            assert_eq!(fake.offsets.memory_of_cpus(pointer), means, "{word:x}");
        }
        assert_eq!(fake.offsets.memory_of_cpus(std::ptr::null_mut()), None);
    }

    #[test]
    fn what_does_not_look_right_is_not_read() {
        let mut fake = Fake::new();
        assert_eq!(fake.asked_env(), Some(Vec::new()));
        fake.put(fake.offsets.asked.env_size, &3u32.to_ne_bytes());
        assert_eq!(fake.asked_env(), None);
        fake.put(fake.offsets.asked.env, &0x1000usize.to_ne_bytes());
        assert_eq!(fake.asked_env(), None);
        fake.put(fake.offsets.asked.env_size, &u32::MAX.to_ne_bytes());
        assert_eq!(fake.asked_env(), None);
        fake.put(fake.offsets.asked.per_job, &0x1000usize.to_ne_bytes());
        assert_eq!(fake.asked_shape(), None);
        assert_eq!(fake.offsets.asked_env(std::ptr::null_mut()), None);
    }

    #[test]
    fn an_update_changes_what_it_names() {
        let now = Shape {
            min_nodes: 2,
            per_node: Some("gres/gpu:4".into()),
            ..Shape::default()
        };
        let update = Shape {
            min_nodes: 3,
            exclusive: true,
            ..Shape::default()
        };
        assert!(
            touches(&update)
                && !touches(&Shape {
                    exclusive: true,
                    ..Shape::default()
                })
        );
        let both = merged(now.clone(), &update);
        assert_eq!(
            both,
            Shape {
                min_nodes: 3,
                ..now
            }
        );
    }
}
