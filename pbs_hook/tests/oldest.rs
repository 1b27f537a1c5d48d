//! The hook by the oldest Python that it is for, 3.6 of EL8, where one is here: the same comes of events as by this machine's own.

use std::path::Path;

use serde_json::json;

use crate::events::hanging;
use crate::recorded::events;
use crate::support::{
    ACCEPTED, ASKING, Hook, PLAIN, has_python, oldest_python, own, python, python_of,
};

/// Every so many-th of the recorded events is enough: they repeat themselves.
const NTH: usize = 50;

#[test]
fn the_hook_is_text_of_python_3_6_by_the_grammar_of_a_newer_one() {
    if !has_python() {
        return;
    }
    let text = std::fs::read_to_string(own("gpuos_hook.py")).expect("the hook");
    let check = "import ast, sys\nast.parse(sys.stdin.read(), feature_version=(3, 6))";
    python(&["-c".as_ref(), check.as_ref()], &text, &[]);
}

#[test]
fn python_3_6_takes_the_hook_and_warns_of_nothing() {
    let Some(oldest) = oldest_python() else {
        return;
    };
    let text = std::fs::read_to_string(own("gpuos_hook.py")).expect("the hook");
    let check = "import sys\ncompile(sys.stdin.read(), 'gpuos_hook.py', 'exec')";
    let arguments: [&Path; 4] = ["-W", "error", "-c", check].map(Path::new);
    let (out, error) = python_of(&oldest, &arguments, &text, &[]);
    assert_eq!((out.as_str(), error.as_str()), ("", ""));
}

#[test]
fn the_same_comes_of_events_by_python_3_6() {
    let Some(oldest) = oldest_python().filter(|_| has_python()) else {
        return;
    };
    let wrong = ASKING.replace("=leaf", "=spine");
    let launch = "pbs.event().type=execjob_launch\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
                  pbs.event().job.exec_vnode=(n1[0]:ngpus=1+n1[1]:ngpus=1)\npbs.event().env=\"\"\"A=1,LIST=x\\,y\"\"\"";
    let asking = format!("{launch}\npbs.event().job.Resource_List[gpuos_topology]=leaf");
    let reservation = "pbs.event().type=resvsub\npbs.event().resv.Resource_List[select]=2:ngpus=1\n\
                       pbs.event().resv.Resource_List[gpuos_topology]=leaf\nlacks=MODIFYRESV";
    let operator = "pbs.event().type=runjob\npbs.event().requestor=root\npbs.event().job.exec_vnode=(n1:ngpus=2)\n\
                    pbs.server().vnode(\"n1\").resources_available[ngpus]=2\npbs.server().vnode(\"n1\").resources_assigned[ngpus]=1";
    let run = "pbs.event().type=runjob\nnow=1000\npbs.event().job.Resource_List[gpuos_topology]=leaf:required\n\
               pbs.event().job.exec_vnode=(n1[0]:ngpus=1)+(n2[0]:ngpus=1)\n\
               pbs.server().vnode(\"n1[0]\").resources_available[gpuos_leaf]=l1\n\
               pbs.server().vnode(\"n2[0]\").resources_available[gpuos_leaf]=l2";
    let periodic = "pbs.event().type=exechost_periodic\npbs.get_local_nodename()=n1\n\
                    pbs.event().job_list[\"1.head\"].exec_vnode=(n1[0]:ngpus=1)\npbs.event().job_list[\"1.head\"].euser=root";
    let end = "pbs.event().type=execjob_end\npbs.get_local_nodename()=n1\npbs.event().job.id=1.head\n\
               pbs.event().job.exec_vnode=(n1[0]:ngpus=1)\npbs.event().job.euser=root\npbs.event().job.run_version=1";
    let basic = [
        PLAIN,
        ASKING,
        &wrong,
        launch,
        &asking,
        reservation,
        operator,
        run,
        periodic,
        end,
    ];
    let hosts = json!({ "n1": { "leaf": "l1", "former": [0, 1], "gpus": [{ "uuid": "GPU-a", "nvlink": "p" }, { "uuid": "GPU-b", "nvlink": "p" }] } });
    let whole = Hook::new(&hosts);
    let nowhere = json!({ "command": "/nowhere/gpuos", "library": "/nowhere/lib.so" });
    let without = Hook::with(&nowhere.to_string());
    for hook in [&whole, &without] {
        let said = hook.run_by(&oldest, "60", &basic).into_iter();
        // It names the file twice where it cannot run one.
        let said = said.map(|said| said.replace(": '/nowhere/gpuos': '", ": '"));
        assert_eq!(said.collect::<Vec<_>>(), hook.run(&basic));
    }
    let said = whole.run_by(&oldest, "60", &basic);
    assert_eq!(said[0], ACCEPTED);
    assert!(
        said[1].contains("[place]=free:group=gpuos_leaf"),
        "{}",
        said[1]
    );
    assert!(
        said[3].contains("env[CUDA_VISIBLE_DEVICES]=GPU-a,GPU-b"),
        "{}",
        said[3]
    );

    // And of some that a real PBS had.
    let recorded = events("tests/data/events.txt.gz");
    let hosts = std::fs::read_to_string(own("tests/data/hosts.json")).expect("the hosts");
    let hook = Hook::new(&serde_json::from_str(&hosts).expect("JSON"));
    let some: Vec<_> = recorded.iter().step_by(NTH).collect();
    let given: Vec<&str> = some.iter().map(|(given, _)| given.as_str()).collect();
    for ((given, wanted), made) in some.iter().zip(hook.run_by(&oldest, "60", &given)) {
        assert_eq!(made, *wanted, "{given}");
    }
}

/// Its `subprocess.run` would wait for what the command has started.
#[test]
fn a_command_that_hangs_is_given_up_by_python_3_6_as_well() {
    let Some(oldest) = oldest_python() else {
        return;
    };
    let said = hanging().run_by(&oldest, "3", &[ASKING, PLAIN]);
    assert!(said[0].contains("took longer than 3 s"), "{}", said[0]);
    assert_eq!(said[1], ACCEPTED);
}
