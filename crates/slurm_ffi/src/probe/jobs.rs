//! Probe objects of jobs, of what they hold, and of partitions.

use std::ffi::{c_char, c_int, c_void};

use super::gres::protocol;
use super::wire::Wire;
use super::{Answer, No, Probe, buffer, function, same, same_text, store, text, zeroed};
use crate::handles::{NO_VAL, NO_VAL16};
use crate::layout::MultiCore;
use crate::mem::read;
use crate::release::Release;
use crate::sizes;

/// Packed resources have the step to look at next from here on,
const NEXT_STEP_FROM: Release = Release::new(24, 11, 0);
/// the nodes as a bitmap in these releases, and ranks of nodes after them.
const NODE_BITMAP_FROM: Release = Release::new(24, 5, 0);
const RANKS_FROM: Release = Release::new(26, 5, 0);

/// What a job holds, unpacked by Slurm.
pub fn resources(probe: &Probe<'_>) -> Answer {
    type Unpack = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, u16) -> c_int;
    let unpack = function::<Unpack>(c"unpack_job_resources")?;
    let mut wire = Wire::default().u32(3).u32(0x1a01);
    if probe.release >= NEXT_STEP_FROM {
        wire = wire.u32(0x1a02);
    }
    // node_req, nodes, whole_node, threads_per_core, cr_type.
    wire = wire.u32(0x1a03).text("probe[1-3]").u8(1).u16(0x1b01).u16(4);
    wire = wire
        .array32(&[3])
        .array16(&[0x1c])
        // cpus, cpus_used, memory_allocated, memory_used.
        .array16(&[0x1d01, 0x1d02, 0x1d03])
        .array16(&[0x1d11, 0x1d12, 0x1d13])
        .array64(&[0x1e01, 0x1e02, 0x1e03])
        .array64(&[0x1e11, 0x1e12, 0x1e13])
        // sockets_per_node, cores_per_socket, and how often.
        .array16(&[2])
        .array16(&[4])
        .array32(&[3])
        .bits(24, 0x15)
        .no_bits();
    let has_bitmap = (NODE_BITMAP_FROM..RANKS_FROM).contains(&probe.release);
    wire = match has_bitmap {
        true => wire.bits(90, 0x7),
        false => wire.u32(0),
    };
    let mut made = std::ptr::null_mut();
    let packed = buffer(wire.0)?;
    // SAFETY: int unpack_job_resources(job_resources_t **, buf_t *, uint16_t).
    let code = unsafe { unpack(&raw mut made, packed, protocol(probe.release)) };
    if code != 0 || made.is_null() {
        return Err(No::Misfit(
            "Slurm does not unpack a job's resources of its release".into(),
        ));
    }
    let (at, fields) = (made as usize, &probe.layout.resources);
    sizes::exactly(at, "job_resources", fields.whole)?;
    same(at, fields.nhosts, 3_u32, "job_resources.nhosts")?;
    let cpus = read::<usize>(at + fields.cpus).unwrap_or(0);
    same(cpus, 4, 0x1d03_u16, "job_resources.cpus")?;
    let memory = read::<usize>(at + fields.memory_allocated).unwrap_or(0);
    same(memory, 16, 0x1e03_u64, "job_resources.memory_allocated")?;
    super::same_bits(
        at,
        fields.core_bitmap,
        24,
        0x15,
        "job_resources.core_bitmap",
    )?;
    match has_bitmap {
        true => super::same_bits(at, fields.node_bitmap, 90, 0x7, "job_resources.node_bitmap")?,
        false => same(at, fields.node_bitmap, 0_usize, "job_resources.node_bitmap")?,
    }
    Ok(())
}

/// A number of a job, in its record or its details and in the description that Slurm makes of it.
#[derive(Clone, Copy)]
enum Number {
    Byte(u8),
    Half(u16),
    Word(u32),
    Long(u64),
}

const NUMBERS: [(&str, &str, Number); 14] = [
    ("job_record", "priority", Number::Word(0x2a00_0001)),
    ("job_record", "time_limit", Number::Word(0x2a00_0002)),
    ("job_record", "time_min", Number::Word(0x2a00_0003)),
    ("job_record", "user_id", Number::Word(0x2a00_0004)),
    ("job_details", "min_cpus", Number::Word(0x2a00_0005)),
    ("job_details", "min_nodes", Number::Word(0x2a00_0006)),
    ("job_details", "max_nodes", Number::Word(0x2a00_0007)),
    ("job_details", "num_tasks", Number::Word(0x2a00_0008)),
    ("job_details", "core_spec", Number::Half(0x2b01)),
    ("job_details", "cpus_per_task", Number::Half(0x2b02)),
    ("job_details", "ntasks_per_node", Number::Half(0x2b03)),
    ("job_details", "overcommit", Number::Byte(0x2c)),
    ("job_details", "pn_min_memory", Number::Long(0x2d00_0001)),
    ("job_details", "begin_time", Number::Long(0x2d00_0002)),
];

const PN_MIN_CPUS: u32 = 0x2e01;
/// GPUs bound to cores, and memory as the job said it.
const BIT_FLAGS: u64 = 1 << 4 | 1 << 23;
/// The first of what is asked of cores; each next field has one more.
const CORES: u16 = 0x2f01;

/// The fields of what is asked of cores, which the description has under the same names.
fn of_cores(at: MultiCore) -> [(&'static str, usize); 5] {
    [
        ("sockets_per_node", at.sockets_per_node),
        ("cores_per_socket", at.cores_per_socket),
        ("threads_per_core", at.threads_per_core),
        ("ntasks_per_socket", at.ntasks_per_socket),
        ("ntasks_per_core", at.ntasks_per_core),
    ]
}

const TEXTS: [&str; 6] = [
    "account",
    "name",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
];

/// How a job shares its nodes: `share_res`, `whole_node`, and what the description has as `shared`.
const SHARING: [(u8, u8, u16); 4] = [(1, 0, 1), (0, 1, 0), (0, 2, 2), (0, 0, NO_VAL16)];

/// A job's record and details, filled by the table, of which Slurm makes a description.
pub fn description(probe: &Probe<'_>) -> Answer {
    type Describe = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
    let describe = function::<Describe>(c"copy_job_record_to_job_desc")?;
    let place = |structure: &str, field: &str| probe.fields.offset(structure, field);
    let whole = probe.fields.size("job_descriptor")?;
    for (share, whole_node, shared) in SHARING {
        let (record, details) = (zeroed(), zeroed());
        store(record, probe.layout.job.details, details);
        let cores = zeroed();
        store(details, probe.layout.details.mc_ptr, cores);
        store(record, probe.layout.job.bit_flags, BIT_FLAGS);
        if let Some(at) = probe.layout.multi_core {
            for (n, (_, offset)) in of_cores(at).into_iter().enumerate() {
                store(cores, offset, CORES + n as u16);
            }
        }
        // A job of which slurmctld has neither script nor environment.
        store(record, place("job_record", "array_task_id")?, NO_VAL);
        for (structure, field, number) in NUMBERS {
            let at = if structure == "job_record" {
                record
            } else {
                details
            };
            let offset = place(structure, field)?;
            match number {
                Number::Byte(value) => store(at, offset, value),
                Number::Half(value) => store(at, offset, value),
                Number::Word(value) => store(at, offset, value),
                Number::Long(value) => store(at, offset, value),
            }
        }
        store(details, probe.layout.details.pn_min_cpus, PN_MIN_CPUS);
        store(details, probe.layout.details.share_res, share);
        store(details, probe.layout.details.whole_node, whole_node);
        for field in TEXTS {
            store(
                record,
                place("job_record", field)?,
                text(&format!("probe of {field}")),
            );
        }
        let entries = zeroed();
        (0..3).for_each(|index| store(entries, index * 8, text(&format!("PROBE{index}=1"))));
        store(record, probe.layout.job.spank_job_env, entries);
        store(record, probe.layout.job.spank_job_env_size, 3_u32);
        // SAFETY: job_desc_msg_t *copy_job_record_to_job_desc(job_record_t *).
        let made = unsafe { describe(record as *mut c_void) } as usize;
        sizes::exactly(made, "job_descriptor", whole)?;
        for (structure, field, number) in NUMBERS {
            let (offset, what) = (
                place("job_descriptor", field)?,
                format!("{structure}.{field}"),
            );
            match number {
                Number::Byte(value) => same(made, offset, value, &what)?,
                Number::Half(value) => same(made, offset, value, &what)?,
                Number::Word(value) => same(made, offset, value, &what)?,
                Number::Long(value) => same(made, offset, value, &what)?,
            }
        }
        let offset = place("job_descriptor", "bitflags")?;
        same(made, offset, BIT_FLAGS, "job_record.bit_flags")?;
        if let Some(at) = probe.layout.multi_core {
            for (n, (field, _)) in of_cores(at).into_iter().enumerate() {
                let what = format!("multi_core_data.{field}");
                same(
                    made,
                    place("job_descriptor", field)?,
                    CORES + n as u16,
                    &what,
                )?;
            }
        }
        let offset = place("job_descriptor", "pn_min_cpus")?;
        // Half as wide there.
        same(made, offset, PN_MIN_CPUS as u16, "job_details.pn_min_cpus")?;
        for field in TEXTS {
            let offset = place("job_descriptor", field)?;
            same_text(
                made,
                offset,
                &format!("probe of {field}"),
                &format!("job_record.{field}"),
            )?;
        }
        let offset = place("job_descriptor", "spank_job_env_size")?;
        same(made, offset, 3_u32, "job_record.spank_job_env_size")?;
        let env = read::<usize>(made + place("job_descriptor", "spank_job_env")?).unwrap_or(0);
        same_text(env, 16, "PROBE2=1", "job_record.spank_job_env")?;
        let offset = place("job_descriptor", "shared")?;
        same(made, offset, shared, "job_details.share_res or whole_node")?;
    }
    Ok(())
}

/// A partition as Slurm makes a new one.
pub fn partition(probe: &Probe<'_>) -> Answer {
    type Make = unsafe extern "C" fn() -> *mut c_void;
    type MakeNamed = unsafe extern "C" fn(*const c_char) -> *mut c_void;
    type Begin = unsafe extern "C" fn();
    const INFINITE: u32 = 0xffff_ffff;
    let fields = &probe.layout.part;
    let at = match function::<Make>(c"part_record_create") {
        // SAFETY: part_record_t *part_record_create(void).
        Ok(make) => unsafe { make() as usize },
        Err(_) => {
            let begin = function::<Begin>(c"init_part_conf")?;
            let make = function::<MakeNamed>(c"create_part_record")?;
            let list = crate::api::symbol(c"part_list").and_then(|list| read(list as usize));
            // SAFETY: void init_part_conf(void), which makes the list of partitions where there is none yet, and
            // part_record_t *create_part_record(const char *).
            let at = unsafe {
                if list == Some(0_usize) {
                    begin();
                }
                make(c"probe".as_ptr()) as usize
            };
            same_text(at, fields.name, "probe", "part_record.name")?;
            at
        }
    };
    sizes::exactly(at, "part_record", fields.whole)?;
    const MAGIC: u32 = 0xaefe_8495;
    same(at, fields.magic, MAGIC, "part_record.magic")?;
    same(at, fields.max_time, INFINITE, "part_record.max_time")?;
    same(at, fields.default_time, NO_VAL, "part_record.default_time")?;
    same(at, fields.max_share, 1_u16, "part_record.max_share")?;
    same(at, fields.cr_type, 0_u16, "part_record.cr_type")?;
    let most = "part_record.max_cpus_per_node";
    same(at, fields.max_cpus_per_node, INFINITE, most)?;
    Ok(())
}
