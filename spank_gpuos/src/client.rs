//! In sbatch, salloc and srun: registers, checks and settles the options.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, OnceLock, PoisonError};

use gpuos_config::options::environment::SOURCES_INHERITED;
use gpuos_config::options::given::{EffectiveOptions, GivenOptions, Opt, SourcedValue};
use gpuos_config::options::handover::{Handover, JOB_CHECKPOINT, VARIABLES};
use gpuos_config::options::{OPTIONS, SOURCES, Source};
use gpuos_core::wire::CHECKPOINT_VARIABLE;
use slurm_ffi::guard::guard;
use slurm_ffi::log;
use slurm_ffi::spank::{Spank, SpankOption, print_error, print_note};

use crate::{checkpoint, limits, messages, mig, ranks};

/// What srun takes for `--mem-per-gpu`.
const MEM_PER_GPU: &str = "SLURM_MEM_PER_GPU";

static ASKED: Mutex<Option<GivenOptions>> = Mutex::new(None);

/// What the job of this command hands to its steps, as it was when the command started: the components of a
/// heterogeneous step change the environment one after the other. Absent where it makes a job.
static JOB: OnceLock<Option<Handover>> = OnceLock::new();

fn with_asked<T>(use_it: impl FnOnce(&mut GivenOptions) -> T) -> T {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    use_it(asked.get_or_insert_default())
}

/// Registers the options, so that they are known to the command or, on the node, to slurmstepd,
/// which warns about options that no plugin claims.
pub fn register(spank: Spank<'_>) {
    static TEXTS: OnceLock<Vec<[CString; 3]>> = OnceLock::new();
    let texts = TEXTS.get_or_init(|| {
        let text = |text: &str| CString::new(text).unwrap_or_default();
        let row = |opt: Opt| {
            let help = &OPTIONS[opt as usize];
            [
                text(help.name),
                text(help.argument),
                text(&format!("[gpuos] {}", help.summary)),
            ]
        };
        Opt::ALL.map(row).into()
    });
    for (opt, [name, argument, usage]) in Opt::ALL.into_iter().zip(texts) {
        let option = SpankOption::with_value(name, argument, usage, opt as c_int, on_option);
        if !spank.register(&option) {
            log::error(&messages::option_not_taken(OPTIONS[opt as usize].name));
        }
    }
}

/// Start of a command.
pub fn init(spank: Spank<'_>) {
    // A job that submits another one does not hand its own options on: they were about its own place.
    // `GPUOS_*` is the way to say something about all jobs.
    for opt in Opt::ALL {
        remove_variable(opt.inherited_as());
        spank.job_control_unsetenv(opt.carried_name());
    }
    remove_variable(SOURCES_INHERITED);
    // Steps know what their job asked for by these; another job has its own.
    let step = is_program("srun") && std::env::var_os("SLURM_JOB_ID").is_some();
    JOB.get_or_init(|| step.then(|| Handover::read(|name| std::env::var(name).ok())));
    // sbatch and salloc set it to what was asked for the program alone. Without it a step has all that its job has.
    if JOB
        .get()
        .is_some_and(|job| job.as_ref().is_some_and(Handover::has_memory))
    {
        remove_variable(MEM_PER_GPU);
    }
    if !step {
        // The folder of the job that submits this one; a variable of the user's own stays.
        if std::env::var_os(JOB_CHECKPOINT).is_some() {
            remove_variable(CHECKPOINT_VARIABLE);
        }
        VARIABLES.into_iter().for_each(remove_variable);
    }
    register(spank);
}

/// Called by Slurm for each option that it meets. Non-zero refuses the value.
unsafe extern "C" fn on_option(val: c_int, value: *const c_char, remote: c_int) -> c_int {
    guard(
        "option callback",
        || 0,
        || {
            let (Some(opt), false) = (Opt::from_val(val), value.is_null()) else {
                return 0;
            };
            // SAFETY: Slurm passes a NUL-terminated string that lives over the call.
            let value = unsafe { CStr::from_ptr(value) }.to_string_lossy();
            // On the node the value is checked already, and an error there would only harm.
            if remote != 0 {
                if opt == Opt::Shape {
                    ranks::note(&value);
                }
                limits::note(opt, &value);
                if opt == Opt::Mig {
                    mig::note(&value);
                }
                if opt == Opt::Checkpoint {
                    checkpoint::note(&value);
                }
                if opt == Opt::Spares {
                    checkpoint::note_spares(&value);
                }
                return 0;
            }
            let source = source(opt, &value);
            if let Err(error) = opt.check(&value) {
                return refuse(&error.came_from(source).to_string());
            }
            let inherited = std::env::var(opt.inherited_as()).ok();
            let given = SourcedValue {
                value: value.into_owned(),
                source,
            };
            with_asked(|asked| asked.note(opt, given, inherited.as_deref()));
            0
        },
    )
}

/// Where a value came from that Slurm tells: it does not say, but only sbatch has options of another place than its
/// command line.
fn source(opt: Opt, value: &str) -> Source {
    let words = || std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    match is_program("sbatch") && !opt.is_on(&words().collect::<Vec<_>>(), value) {
        true => Source::Script,
        false => Source::Flag,
    }
}

/// How a step would share its GPU that its job does not allow it.
fn beyond_its_job(job: &Handover, settled: &EffectiveOptions) -> Option<String> {
    let share = Opt::Share as usize;
    match &settled.values[share] {
        Some(given) if !job.may_share(&given.value) => {
            Some(given.source.named("--gpuos-share", &given.value))
        }
        None if settled.undone[share] && !job.may_share("off") => Some("--gpuos-share=off".into()),
        _ => None,
    }
}

/// All options of a component of the job are known: what counts is sent, and nothing else.
pub fn send_options(spank: Spank<'_>) -> c_int {
    let job = JOB.get().and_then(Option::as_ref);
    // What is not UTF-8 is no value either, and is refused as one.
    let default = |opt: Opt| {
        // srun has its program on all nodes.
        let is_none = opt == Opt::Spares && is_program("srun");
        if is_none || job.is_some_and(|job| job.decides(opt)) {
            return None;
        }
        let value = std::env::var_os(opt.default_variable())?;
        Some(value.to_string_lossy().into_owned())
    };
    let settled = with_asked(|asked| asked.finish(default));
    let settled = match settled {
        Ok(settled) => settled.with_restart(),
        Err(error) => return refuse(&error.to_string()),
    };
    if let (Some(_), Some(given)) = (job, &settled.values[Opt::Checkpoint as usize]) {
        let given = given.source.named("--gpuos-checkpoint", &given.value);
        print_note(&format!("gpuos: {}", messages::checkpoint_of_step(given)));
    }
    if let (Some(job), Some(given)) = (job, &settled.values[Opt::Memory as usize])
        && !job.may_have_memory(&given.value)
    {
        let given = given.source.named("--gpuos-mem", &given.value);
        print_note(&format!("gpuos: {}", messages::memory_of_step(given)));
    }
    if let Some(given) = job.and_then(|job| beyond_its_job(job, &settled)) {
        print_note(&format!("gpuos: {}", messages::turns_of_step(given)));
    }
    if let (true, Some(given)) = (is_program("srun"), &settled.values[Opt::Spares as usize]) {
        let given = given.source.named("--gpuos-spares", &given.value);
        return refuse(&String::from(messages::spares_of_step(given)));
    }
    // The shell of salloc has no slurmstepd that could tell it, and its steps are told by it.
    let handed = job.cloned().unwrap_or_default();
    for (name, value) in handed.with(&settled, is_program("srun")).variables() {
        match value {
            Some(value) => set_variable(name, &value),
            None => remove_variable(name),
        }
    }
    // For the sentences of the controller.
    let sources = settled.sources();
    for (opt, given) in Opt::ALL.into_iter().zip(settled.values) {
        let name = opt.carried_name();
        match given {
            Some(SourcedValue { value, .. }) => {
                set_variable(opt.carried_as(), &value);
                spank.job_control_setenv(name, &value);
            }
            None => {
                remove_variable(opt.carried_as());
                spank.job_control_unsetenv(name);
            }
        }
    }
    let name = CString::new(SOURCES).unwrap_or_default();
    match sources.text() {
        text if text.is_empty() => spank.job_control_unsetenv(&name),
        text => spank.job_control_setenv(&name, &text),
    };
    0
}

/// Says why and ends the command with the exit code 1 (or `$SLURM_EXIT_ERROR`).
///
/// A plugin listed as `optional` has no other way: Slurm ignores what its hooks return, and for a
/// refused option it exits with 255.
fn refuse(sentence: &str) -> c_int {
    print_error(sentence);
    let code = std::env::var("SLURM_EXIT_ERROR")
        .ok()
        .and_then(|code| code.parse().ok());
    if is_command() {
        std::process::exit(code.filter(|code| *code != 0).unwrap_or(1));
    }
    -1
}

/// Whether this is one of the commands that people type. Other programs with options (scrun,
/// scrontab) end in their own way.
fn is_command() -> bool {
    ["sbatch", "salloc", "srun"].into_iter().any(is_program)
}

fn is_program(name: &str) -> bool {
    let program = std::env::args_os().next();
    let file = program
        .as_deref()
        .and_then(|p| std::path::Path::new(p).file_name());
    file.is_some_and(|file| file == name)
}

fn set_variable(name: &str, value: &str) {
    // SAFETY: sbatch, salloc and srun call their plugins before they start threads, and change their
    // environment at this point themselves.
    unsafe { std::env::set_var(name, value) };
}

fn remove_variable(name: &str) {
    // SAFETY: as in set_variable.
    unsafe { std::env::remove_var(name) };
}
