"""All faults by name: what is done by tools/soak, and which tests do the rest.

A fault with `inject` is done to running processes here. The tests of a fault are run with it, so one command shows all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tools.soak import faults, hour
from tools.soak.victim import Ground, Outcome

PROCESSES, SOCKETS, MODELS = "test_faults_processes.py", "test_faults_sockets.py", "test_faults_models.py"
LIFE, ERRORS, COUNTING = "test_system_lifecycle.py", "test_system_errors.py", "test_system_counting.py"
HOSTILE = "test_hostile.py"
WIRE, VERBS, BUFFER, CHECKPOINT = "test_wire.py", "test_verbs.py", "test_buffer.py", "test_checkpoint.py"


class Fault(NamedTuple):
    """minutes: about what `inject` takes. tests: of tests/, as `file::function`."""

    title: str
    inject: tuple[Callable[[Ground], Outcome], ...] = ()
    tests: tuple[str, ...] = ()
    minutes: float = 0.5


FAULTS: dict[str, Fault] = {
    "F1": Fault("a worker is killed", (faults.kill_worker,), (f"{COUNTING}::test_role_killed",)),
    "F2": Fault("the actor is killed", (faults.kill_actor,), (f"{VERBS}::test_an_actor_that_comes_back_answers",)),
    "F3": Fault(
        "the model pool is killed", (faults.kill_pool,),
        (f"{VERBS}::test_a_pool_that_comes_back_empty_gets_the_model_again",),
    ),
    "F4": Fault(
        "learner and buffer are killed", (faults.kill_learner_then_buffer,), (f"{COUNTING}::test_learner_killed",), 1,
    ),
    "F5": Fault("a resumed run", tests=(f"{CHECKPOINT}::test_a_resumed_run_is_the_same_run_to_the_bit",)),
    "F6": Fault(
        "damaged checkpoints",
        tests=(
            f"{CHECKPOINT}::test_damage_is_found_out_and_the_previous_one_used",
            f"{CHECKPOINT}::test_a_hundred_flipped_bits", f"{CHECKPOINT}::test_every_byte_of_a_manifest",
            f"{LIFE}::test_status_stop_and_resume",
        ),
    ),
    "F7": Fault("killed while saving", tests=(f"{CHECKPOINT}::test_killed_while_saving",)),
    "F8": Fault(
        "the disk is full for a while",
        tests=(
            f"{CHECKPOINT}::test_a_full_disk_is_a_warning_a_minute",
            "test_monitor.py::test_a_full_disk_is_one_warning_a_minute_and_never_an_end",
        ),
    ),
    "F9": Fault(
        "bad frames and strangers at every port", (faults.bad_frames_at_each_port,),
        (f"{WIRE}::test_ten_thousand_broken_messages", "test_fuzz.py::test_broken_input_is_refused"), 3,
    ),
    "F10": Fault(
        "frames that are too large",
        tests=(
            f"{WIRE}::test_a_frame_above_the_limit_is_not_taken",
            f"{WIRE}::test_a_gigabyte_is_announced_and_never_allocated",
        ),
    ),
    "F11": Fault(
        "samples of another shape, with NaN",
        tests=(
            f"{BUFFER}::test_what_breaks_the_contract_is_refused_and_changes_nothing",
            f"{VERBS}::test_a_round_that_breaks_the_contract_names_its_sender",
        ),
    ),
    "F12": Fault("a port that is taken", tests=(f"{LIFE}::test_a_taken_port_is_named_with_its_owner",)),
    "F13": Fault(
        "a second start",
        tests=(f"{LIFE}::test_a_run_from_its_start_to_an_interrupt", f"{LIFE}::test_two_starts_at_once_share_nothing"),
    ),
    "F14": Fault(
        "stop all", tests=(f"{LIFE}::test_status_stop_and_resume", f"{LIFE}::test_a_long_update_is_waited_for"),
    ),
    "F15": Fault(
        "signals",
        tests=(
            f"{LIFE}::test_a_run_from_its_start_to_an_interrupt", f"{LIFE}::test_a_second_interrupt_ends_it_at_once",
            f"{PROCESSES}::test_a_second_signal_ends_one_process_at_once",
            f"{PROCESSES}::test_a_closed_terminal_ends_the_run_in_order",
        ),
    ),
    "F16": Fault(
        "the supervisor is killed",
        tests=(f"{PROCESSES}::test_all_processes_end_with_the_worker_and_with_the_run",),
    ),
    "F17": Fault("environments that fail", tests=("test_rollout.py", f"{ERRORS}::test_a_definition_that_raises")),
    "F18": Fault(
        "weights that become NaN",
        tests=(
            f"{MODELS}::test_a_run_survives_one_bad_update", f"{MODELS}::test_a_run_that_diverges_ends_with_3",
            f"{MODELS}::test_one_bad_update_goes_back_to_the_checkpoint_and_on",
        ),
    ),
    "F19": Fault(
        "the wall clock jumps", (faults.step_clock,),
        (f"{PROCESSES}::test_start_times_do_not_move_with_the_wall_clock",), 1.5,
    ),
    "F20": Fault("the learner stands still", (faults.freeze_learner,), (f"{VERBS}::test_producers_wait_for_room",), 2),
    "F21": Fault(
        "a slow reader of models", tests=(f"{VERBS}::test_a_reader_gets_the_newest_and_no_backlog",),
    ),
    "F22": Fault(
        "a bad line to the buffer", (faults.line_to_the_buffer,),
        (f"{VERBS}::test_lost_answers_are_repeated_and_nothing_comes_twice",), 3,
    ),
    "F23": Fault(
        "a crash loop",
        tests=(
            f"{LIFE}::test_a_crash_loop_ends_the_run_with_its_cause",
            f"{PROCESSES}::test_restarts_are_forgotten_only_after_progress",
            "test_system_evaluator.py::test_training_does_without_one_that_is_killed_again_and_again",
        ),
    ),
    "F24": Fault(
        "a wrong configuration",
        tests=("test_config.py::test_wrong_files", "test_config.py::test_wrong_overrides",
               f"{LIFE}::test_a_wrong_setting_starts_nothing"),
    ),
    "F25": Fault(
        "addresses, keys, hostile files",
        tests=("test_keys.py", f"{CHECKPOINT}::test_a_hostile_state_is_refused_and_nothing_is_run",
               f"{LIFE}::test_a_wrong_setting_starts_nothing"),
    ),
    "F26": Fault("the long run", (hour.random_faults,), minutes=0),  # twice --minutes, see `soak.py`
    "F27": Fault(
        "frozen roles, a frozen supervisor", (faults.freeze_each, faults.freeze_for_long),
        (f"{PROCESSES}::test_every_role_may_be_stopped_for_a_while",), 14,
    ),
    "F28": Fault(
        "hangs in user code", (faults.hang_everywhere, faults.hang_in_one_process),
        (f"{PROCESSES}::test_a_hang_is_named_and_started_again",), 4,
    ),
    "F29": Fault(
        "floods, messages without an end", (faults.floods, faults.endless_parts),
        (f"{SOCKETS}::test_a_message_without_an_end_from_a_stranger",
         f"{WIRE}::test_a_flood_of_bad_frames_is_counted_in_bounded_memory"), 3,
    ),
    "F30": Fault("from another machine", tests=("test_netns.py",)),
    "F31": Fault(
        "files that somebody else made",
        tests=("test_hostile.py", f"{PROCESSES}::test_a_run_file_made_by_somebody_else_stops_nobody",
               "test_user.py::test_no_code_is_taken_from_a_run"),
    ),
    "F32": Fault("the clock jumps, then status and stop: with F19", tests=()),
    "F33": Fault(
        "environments with children", (faults.kill_families,),
        (f"{PROCESSES}::test_all_processes_end_with_the_worker_and_with_the_run",), 1,
    ),
    "F34": Fault(
        "no room for the last checkpoint",
        tests=(f"{MODELS}::test_a_disk_that_is_full_when_a_run_stops",
               f"{MODELS}::test_a_last_checkpoint_that_does_not_fit"),
    ),
    "F35": Fault(
        "one environment of many fails",
        tests=("test_rollout.py::test_a_row_of_a_vector_is_lost_alone_until_its_episode_ends",
               "test_rollout.py::test_a_run_goes_on_after_a_failure"),
    ),
    "F36": Fault("a stop in the first update", tests=(f"{LIFE}::test_a_long_update_is_waited_for",)),
    "F37": Fault(
        "signals to a whole job, and what launchers leave behind",
        tests=("test_signals.py", f"{PROCESSES}::test_a_signal_to_the_whole_job_ends_it_in_order",
               f"{LIFE}::test_a_run_under_nohup_outlives_its_terminal", f"{LIFE}::test_stopped_while_starting"),
    ),
    "F38": Fault(
        "roles that hold Python's lock, children in sessions of their own",
        tests=("test_place.py::test_everything_ends_with_the_process_that_placed_it",),
    ),
    "F39": Fault(
        "little memory, few files, long names",
        tests=(f"{HOSTILE}::test_a_run_in_a_narrow_place",
               f"{HOSTILE}::test_a_file_is_read_with_the_memory_that_it_needs",
               "test_place.py::test_a_folder_for_sockets_has_a_short_name"),
    ),
    "F40": Fault(
        "strangers that only open connections",
        tests=(f"{WIRE}::test_of_strangers_that_only_connect_the_oldest_leave",),
    ),
    "F41": Fault(
        "a run folder that leads out of itself or steers the terminal",
        tests=(f"{HOSTILE}::test_a_run_folder_that_leads_out_of_itself_is_refused",
               f"{HOSTILE}::test_a_resume_touches_no_other_run",
               f"{HOSTILE}::test_nothing_of_a_run_steers_the_terminal"),
    ),
    "F42": Fault(
        "half a configuration",
        tests=("test_config.py::test_a_file_that_realm_wrote_and_that_lost_a_part_is_damaged",
               f"{HOSTILE}::test_an_empty_configuration_is_not_resumed_with_defaults"),
    ),
    "F43": Fault(
        "a debugger in one process",
        tests=("test_terminal.py::test_the_lines_give_way_to_whoever_reads",
               "test_terminal.py::test_breakpoints_in_a_run_of_one_process"),
    ),
    "F44": Fault(
        "an evaluator without a core",
        tests=("test_evaluator.py::test_starving_is_not_silence",
               "test_evaluator.py::test_who_shares_a_core_waits_for_it"),
    ),
}  # fmt: skip
