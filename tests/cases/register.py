"""Which test holds which case of the field. Pure data; test_register.py checks that every test named here exists.

The ids are public issue trackers' (owner/name#number), our own numbers for what broke in lilbee's shared engine (W1 to
W24), and the ten traps of llama-swap. Each case is one kind of fault that people met; the line says what is asserted
here, in our words. Where a case also speaks of memory accounts, that part comes with the memory planner.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """A case that tests hold."""

    what: str
    where: tuple[str, ...]
    """`tests/<path>.py::<function>`, the most direct one first."""


@dataclass(frozen=True, slots=True)
class Later:
    """A case of something that is not built yet: what it needs, and why it cannot be held before."""

    needs: str
    why: str


Case = Held | Later


def held(what: str, *where: str) -> Held:
    """`where` without the path's beginning: `engine/sharing::name`."""
    full = []
    for one in where:
        path, _, name = one.partition("::")
        folder, _, module = path.rpartition("/")
        full.append(f"tests/{folder}/test_{module}.py::test_{name}")
    return Held(what, tuple(full))


OWNERSHIP: dict[str, Case] = {
    "vllm-project/vllm#55510": held(
        "of a SIGKILLed proxy no server lives when the next one starts, also for who comes meanwhile",
        "engine/survival::a_killed_proxy_is_replaced_on_the_same_port_with_its_servers",
    ),
    "ollama/ollama#5642": held(
        "a SIGKILLed last member's engine is stopped, and its file is gone",
        "engine/sharing::the_last_one_out_stops_it_and_no_other_does",
        "engine/sharing::the_end_of_the_last_one_is_noticed_within_a_second",
    ),
    "dryvist/nix-ai#1182": held(
        "a stranger that is healthy on a server's port gets no prompt, no signal, and no place in status",
        "engine/impostors::nix_ai_1182_who_answers_on_the_port_of_a_dead_engine_is_never_asked",
        "client/transport_losses::a_stranger_on_the_old_port_is_told_nothing",
        "cases/traps::2_a_stranger_that_is_healthy_on_a_servers_port_is_not_taken_for_the_server",
        "unit/group::a_stranger_on_a_servers_port_is_never_taken_for_the_server",
    ),
    "mostlygeek/llama-swap#138": held(
        "a host program that SIGKILLs the engine it started leaves nothing beside the next one, forked-away servers included",
        "cases/builds::a_host_program_that_kills_its_engine_leaves_nothing_beside_the_next_one__llama_swap_138",
        "engine/survival::a_killed_warden_takes_everything_along_and_its_members_build_anew",
    ),
    "mostlygeek/llama-swap#804": held(
        "servers that fork, setsid, daemonise, drop environment or descriptors are found and killed",
        "engine/stopping::nothing_is_left_of_a_server_that_forked_itself_away",
        "process/warden::the_sweep_finds_a_daemon_by_lock_marker_or_session",
    ),
    "mostlygeek/llama-swap#125": held(
        "four servers that ignore SIGTERM end within the teardown's limit, and the next start works",
        "engine/stopping::servers_that_ignore_sigterm_are_killed_when_the_grace_ends",
        "engine/stopping::a_stop_takes_five_seconds_with_stubborn_servers_and_streams_that_nobody_reads",
    ),
    "ggml-org/llama.cpp#15128": held(
        "what SIGKILL does not end is named by pid, holds its group, and nothing is started beside it",
        "process/warden_trouble::an_unkillable_process_is_reported_holds_its_group_and_is_swept_when_it_can_be",
        "unit/group::nothing_is_started_beside_what_cannot_be_killed",
    ),
    "ggml-org/llama.cpp#25528": held(
        "a server that hears nothing while it loads is gone within the grace, by stop and by last-out",
        "cases/ownership::a_server_that_hears_nothing_while_it_loads_is_ended_within_the_grace__llama_cpp_25528",
        "engine/stopping::a_stop_in_the_middle_of_a_load_does_not_wait_for_it",
    ),
    "lemonade-sdk/lemonade#2024": held(
        "a zombie counts as dead: a server whose stopped proxy does not reap it is replaced with it",
        "cases/ownership::a_server_that_its_proxy_does_not_reap_is_replaced_with_it__lemonade_2024",
        "process/identity::a_zombie_is_dead_and_a_reaped_process_too",
        "process/warden_trouble::a_debugger_that_keeps_a_dead_leader_does_not_stop_the_warden",
    ),
    "python-trio/trio#3237": held(
        "what a shell started around a server ends with it, before the next one starts",
        "cases/ownership::what_a_shell_started_around_a_server_ends_with_it__trio_3237",
    ),
    "python-trio/trio#1209": held(
        "a process that cannot be killed bounds nobody's stop, and is named",
        "unit/group::a_stop_that_something_survives_comes_to_an_end",
        "engine/stopping::what_cannot_be_killed_ends_a_stop_in_a_result_of_its_own_that_names_it",
        "process/warden_trouble::a_slot_with_an_unkillable_generation_can_be_quit_and_says_so_by_its_status",
    ),
    "xorbitsai/inference#2235": held(
        "a server killed under load has one successor, though proxy and keeper both see to it",
        "cases/ownership::a_server_killed_under_load_is_replaced_once_by_whoever_replaces_it__xinference_2235",
    ),
    "jundot/omlx#2710": held(
        "of a group whose third server fails nothing is left, and a smaller one works",
        "engine/failing::of_a_group_that_fails_half_way_nothing_is_left_running",
    ),
    "mostlygeek/llama-swap#100": held(
        "started and stopped at any moment, never more than one live set",
        "engine/survival::an_engine_that_is_stopped_and_started_at_any_moment_never_piles_up",
    ),
}

SHARING: dict[str, Case] = {
    "NousResearch/hermes-agent#113325": held(
        "eight threads of one process: one build, one member",
        "engine/sharing::eight_threads_of_one_process_get_one_engine_and_are_one_member",
    ),
    "NousResearch/hermes-agent#116682": held(
        "of many that come at once one builds; what is killed then is rebuilt once",
        "engine/sharing::of_many_that_come_at_once_one_builds_and_the_others_bind",
    ),
    "tobocop2/lilbee#332": held(
        "no command starts an engine but those that say so, and every command is in one of the two lists",
        "cases/starting::no_command_starts_an_engine_but_those_that_say_so__lilbee_332",
    ),
    "mostlygeek/llama-swap#281": held(
        "requests during a load join it: one start",
        "proxy/loading::requests_during_a_load_join_it",
        "engine/sharing::eight_threads_of_one_process_get_one_engine_and_are_one_member",
    ),
    "NousResearch/hermes-agent#116249": held(
        "somebody else's server with our model is named by the doctor with what it holds, and is never signalled",
        "cases/builds::a_strangers_server_with_our_model_is_named_and_left_alone__hermes_agent_116249",
    ),
    "lemonade-sdk/lemonade#2255": held(
        "a port that a stranger shares is not ours; a second engine in the slot leaves with exit status 3",
        "process/ports::a_port_that_is_shared_with_a_stranger_is_not_ours__lemonade_2255",
        "process/warden_keeper::a_second_warden_in_the_slot_leaves_with_3_and_disturbs_nobody",
        "process/serving::a_second_server_exits_3_and_names_the_first__lemonade_2255_ollama_707",
    ),
    "ollama/ollama#707": held(
        "a second `run` names the holder's pid and the way to stop it",
        "engine/running::a_second_run_names_the_holder_and_members_may_come_and_go",
        "process/serving::a_second_server_exits_3_and_names_the_first__lemonade_2255_ollama_707",
    ),
    "vllm-project/vllm#51275": held(
        "a port that somebody took between choice and bind is left to him, without a prompt or a key",
        "engine/impostors::vllm_51275_a_port_that_is_taken_between_choice_and_bind_is_changed_and_not_held_against_the_engine",
        "cases/traps::2_a_stranger_that_is_healthy_on_a_servers_port_is_not_taken_for_the_server",
        "engine/bad_input::a_port_that_somebody_took_meanwhile_is_not_fought_for",
        "process/ports::an_impostor_on_our_port_is_foreign__vllm_51275",
    ),
    "docker/model-runner#760": held(
        "status, logs, another member and stop are answered while models load that never will have",
        "cases/starting::nobody_waits_for_a_load_but_requests__model_runner_760",
        "engine/status::status_and_logs_answer_during_a_slow_load",
    ),
    "jaseci-labs/jac#7493": held(
        "a lock that fails is an error with path and errno, never unlocked work",
        "unit/locks::a_failing_flock_is_an_error_never_unlocked_work__filelock_480",
        "unit/membership::a_join_without_flock_is_an_error_and_leaves_nothing__filelock_480",
    ),
    "tobocop2/lilbee#547 (poisoned slot)": held(
        "an idle engine that does not fit is replaced in place; one in use is left alone, and another started beside it",
        "engine/ladder::an_idle_engine_of_another_kind_is_replaced_in_place",
        "engine/ladder::an_engine_in_use_by_others_is_left_alone_and_another_started_beside_it",
        "engine/ladder::an_engine_that_lacks_something_is_extended_and_what_it_serves_is_not_touched",
    ),
    "tobocop2/lilbee#547 (dead group)": held(
        "who comes while a group is dead or failed binds, and the group is rebuilt in place",
        "engine/survival::a_killed_proxy_is_replaced_on_the_same_port_with_its_servers",
        "engine/ladder::a_group_that_failed_is_no_reason_for_a_second_engine",
    ),
}

LOCKS: dict[str, Case] = {
    "tox-dev/filelock#404": held(
        "taken on one thread, released on another: free",
        "unit/locks::a_hold_taken_on_one_thread_is_released_on_another__filelock_404",
        "unit/membership::joined_on_one_thread_left_on_another__filelock_404",
    ),
    "tox-dev/filelock#315": held(
        "two objects of one process exclude each other within their limits; member handles are counted in every order",
        "unit/locks::two_objects_in_one_process_exclude_each_other_within_their_limits__filelock_315",
        "unit/membership::handles_are_counted_in_every_order__filelock_315",
    ),
    "tobocop2/lilbee#547 (false deadlock)": held(
        "a worker thread locks again after its hold went elsewhere",
        "unit/locks::a_worker_thread_can_lock_again_after_its_hold_went_elsewhere__lilbee_547",
    ),
    "tox-dev/filelock#574": held(
        "never two inside, whatever happens to the file",
        "process/locks::three_processes_never_meet_inside_even_if_the_file_is_deleted__filelock_574",
        "process/membership::members_come_and_go_under_probes_and_none_is_ever_lost__filelock_574",
    ),
    "tox-dev/filelock#634": held(
        "a forked child neither releases its parent's lock nor keeps it",
        "process/locks::a_forked_child_neither_releases_nor_keeps_it__filelock_634",
        "process/membership::a_forked_child_does_not_end_its_parents_membership__filelock_634",
    ),
    "cq27-dev/rag-rat#410": held(
        "leaving shows at once while another thread starts programs",
        "process/membership::two_thousand_leavings_show_at_once_to_a_second_process__rag_rat_410",
        "process/membership::leaving_shows_at_once_while_another_thread_starts_programs__rag_rat_410",
    ),
    "tox-dev/filelock#6": held(
        "a slot on a filesystem that other machines share is refused, by its kind, before anything is made there",
        "unit/slot::a_shared_filesystem_is_refused_before_anything_is_made__filelock_6",
    ),
    "tox-dev/filelock#480": held(
        "no silent other kind of lock where flock fails",
        "unit/locks::a_failing_flock_is_an_error_never_unlocked_work__filelock_480",
    ),
}

BUILDS: dict[str, Case] = {
    "ollama/ollama#4471": held(
        "another build replaces an idle engine, goes beside one in use, and is no matter of our own version; both are named",
        "cases/builds::a_newer_build_replaces_an_idle_engine_and_goes_beside_one_in_use__ollama_4471",
        "unit/ladder::each_rung",
    ),
    "llama-farm/llamafarm#568": held(
        "a program that is replaced or removed changes nothing for what runs of it; who comes next gets the new one, or an error",
        "cases/builds::a_program_that_is_replaced_or_removed_changes_nothing_for_what_runs__llamafarm_568",
    ),
    "ollama/ollama#4443": held(
        "a model's file that is replaced or removed is told by status, and served on; the next start says what is missing",
        "cases/builds::a_models_file_that_is_replaced_or_removed_is_told_and_served_on__ollama_4443",
    ),
}

IDENTITY: dict[str, Case] = {
    "giampaolo/psutil#2526": held(
        "a corrected clock and a moved source of the boot time change no identity, no look and no stop",
        "unit/identity::a_corrected_clock_changes_no_identity__psutil_2526",
        "cases/lilbee::a_stepped_clock_changes_nobodys_identity_and_stop_finds_all__w4",
    ),
    "NousResearch/hermes-agent#114617": held(
        "a record that names a stranger's pid signals nobody",
        "process/identity::a_record_naming_a_strangers_pid_signals_nobody__hermes_114617",
        "engine/stopping::stop_never_signals_a_process_that_only_a_record_names",
    ),
    "jdx/pitchfork#878": held(
        "a pid of another boot is dead and never signalled",
        "unit/identity::another_namespace_or_boot_is_never_signalled",
        "unit/identity::another_boot_is_dead_even_with_the_same_pid_and_ticks",
        "engine/stopping::stop_never_signals_a_process_that_only_a_record_names",
    ),
    "giampaolo/psutil#2895": held(
        "what cannot be read is unknown, never gone",
        "unit/identity::what_cannot_be_read_is_unknown_never_gone__psutil_2895",
    ),
    "bitcoin/bitcoin#21340": held(
        "a full disk leaves the old record, starts nothing, and works again with room",
        "unit/records::a_full_disk_leaves_the_old_record_and_says_why__bitcoin_21340",
        "engine/records::a_start_on_a_full_disk_says_so_starts_nothing_and_works_later",
        "cases/lilbee::a_disk_that_fills_up_under_a_living_engine_loses_no_process__w5",
    ),
    "NousResearch/hermes-agent#13655": held(
        "with all files of a killed holder there, the first try succeeds",
        "engine/survival::a_killed_warden_takes_everything_along_and_its_members_build_anew",
        "process/serving::a_killed_server_leaves_its_files_and_is_in_nobodys_way__hermes_13655",
    ),
    "NousResearch/hermes-agent#1631": held(
        "every look during many rebuilds shows one generation whole",
        "engine/survival::every_look_during_fifty_rebuilds_shows_one_generation_whole__hermes_1631",
        "engine/survival::every_look_during_many_rebuilds_shows_one_generation_whole",
        "process/records::every_read_during_rewriting_is_of_one_generation__hermes_1631",
        "cases/requests::every_look_answers_while_a_keeper_is_being_replaced__hermes_1631",
    ),
}

HEALTH: dict[str, Case] = {
    "ggml-org/llama.cpp#27388": held(
        "a server that answers /health and serves nobody is found by its want of progress; its group alone is rebuilt",
        "engine/health::a_server_that_takes_requests_and_never_answers_is_found_and_rebuilt_alone",
        "unit/health::a_server_that_answers_health_and_serves_nobody_is_wedged",
    ),
    "oobabooga/textgen#7443": held(
        "the same after a third client left",
        "engine/health::a_server_that_wedges_after_a_third_client_left_is_found",
        "unit/health::clients_that_give_up_and_come_again_do_not_hide_a_wedge",
    ),
    "ikawrakow/ik_llama.cpp#1210": held(
        "a server that computes and answers nothing is busy and left alone, for ninety seconds as well",
        "engine/health::a_server_that_computes_and_answers_nothing_is_busy_and_left_alone",
        "engine/health::the_same_for_ninety_seconds",
        "unit/health::a_long_prompt_on_a_cpu_is_busy_for_as_long_as_it_takes",
    ),
    "gonka-ai/gonka#1421": held(
        "one miss is nothing, three without life a hang, a refusal a hang at the second look, a saturated server busy",
        "unit/health::one_missed_probe_of_three_is_nothing",
        "unit/health::three_silent_probes_without_life_are_a_hang",
        "unit/health::refused_connections_are_a_hang_at_the_second_look",
        "unit/health::a_saturated_server_that_answers_no_probe_is_busy",
    ),
    "mostlygeek/llama-swap#155": held(
        "whatever server is killed, its next request is answered, no proxy is replaced, no other stream is cut",
        "cases/requests::whatever_server_is_killed_its_next_request_is_answered_and_no_proxy_is__llama_swap_155",
    ),
    "mostlygeek/llama-swap#92": held(
        "a load past its limit is told by the limit's name, and tried again",
        "engine/failing::a_load_that_takes_longer_than_the_limit_is_told_by_the_limits_name",
        "unit/group::a_group_that_does_not_load_in_time_is_killed_tried_again_and_given_up",
    ),
    "mostlygeek/llama-swap#946": held(
        "requests about the end of the idle time are answered, all",
        "cases/requests::a_request_that_meets_an_idle_unload_is_answered__llama_swap_946",
    ),
    "ollama/ollama#17408": held(
        "who needs another's memory is refused with numbers, at once and each time; who is busy serves on",
        "engine/planning::who_needs_anothers_memory_is_told_so_and_nobody_is_evicted__ollama_17408_18282",
    ),
    "ollama/ollama#18282": held(
        "what can never fit is refused with need, budget and its largest part, and nobody is evicted for it",
        "engine/planning::who_needs_anothers_memory_is_told_so_and_nobody_is_evicted__ollama_17408_18282",
        "engine/planning::a_group_that_does_not_fit_is_given_up_and_the_other_one_serves",
    ),
    "docker/model-runner#334": held(
        "on a card whose size is 0 or unknown two models take turns: each is planned or refused with numbers",
        "workers/planner/launching::two_models_take_turns_on_a_card_of_no_known_size__model_runner_334",
    ),
    "Hal0ai/hal0#2037": held(
        "a server that never came up is given up after three starts, with its last words",
        "engine/failing::a_server_that_never_becomes_healthy_is_given_up_after_three_starts",
        "unit/restart::a_group_that_never_became_ready_is_given_up_after_its_tries",
        "cases/traps::10_many_requests_to_a_server_that_cannot_start_are_few_starts",
    ),
    "ollama/ollama#3362": held(
        "no start before the last one is swept and reaped, and never a tight loop",
        "unit/group::between_death_and_the_end_of_the_sweep_nothing_is_started",
        "unit/restart::there_is_no_tight_loop",
        "engine/account::a_group_that_fails_for_ever_costs_next_to_nothing",
        "process/warden::a_spawn_is_refused_while_the_group_has_a_generation_that_is_not_gone",
    ),
    "tobocop2/lilbee#547 (fail-fast window)": held(
        "twenty requests wait a rebuild out; twenty that may not get a 503 with group, state and reason",
        "cases/requests::requests_during_a_rebuild_wait_or_are_told_to__lilbee_547",
        "client/transport_answers::past_the_deadline_the_503_says_group_state_reason_and_tries",
        "engine/gateway::past_the_deadline_a_503_says_group_state_and_reason",
    ),
    "mostlygeek/llama-swap#408": held(
        "mebibytes of log hinder nobody, and its file is capped",
        "cases/traps::3_nobodys_output_is_a_pipe_that_somebody_must_read",
        "unit/logfiles::a_living_writer_goes_on_at_the_new_end",
        "unit/logfiles::a_file_above_its_limit_is_kept_once_and_emptied",
    ),
    "ggml-org/llama.cpp#20509": held(
        "an OOM kill is told from any other SIGKILL",
        "process/oom::llama_cpp_20509_an_oom_kill_by_the_kernel_is_named",
        "unit/causes::llama_cpp_20509_an_oom_kill_is_told_from_any_other_sigkill",
    ),
}

LIFETIME: dict[str, Case] = {
    "mostlygeek/llama-swap#25": held(
        "the idle time counts from the last byte",
        "cases/idle::a_model_is_unloaded_its_idle_time_after_the_last_byte_whoever_looks",
        "proxy/loading::the_idle_time_counts_from_the_last_byte",
        "cases/requests::looking_neither_keeps_a_model_loaded_nor_loads_it__llama_cpp_23096",
    ),
    "mostlygeek/llama-swap#289": held(
        "a load past its limit is told by the one limit that ended it",
        "engine/failing::a_load_that_takes_longer_than_the_limit_is_told_by_the_limits_name",
    ),
    "ggml-org/llama.cpp#23096": held(
        "looking neither keeps a model loaded nor loads it",
        "cases/requests::looking_neither_keeps_a_model_loaded_nor_loads_it__llama_cpp_23096",
        "engine/gateway_access::scraping_neither_keeps_a_model_loaded_nor_loads_it__llama_cpp_23096",
        "proxy/loading::looking_is_not_use",
    ),
    "ollama/ollama#10263": held(
        "no client can set how long a model stays; any configuration keeps the engine warm, and takes back its own wish only",
        "engine/changing::any_configuration_that_wants_the_engine_warm_keeps_it__ollama_10263",
        "engine/changing::keep_warm_is_taken_back_by_who_asked_for_it",
    ),
    "ollama/ollama#8029": held(
        "a member that wants no particular context takes the engine's: no reload in twenty alternations",
        "cases/requests::members_that_want_no_particular_context_take_the_engines__ollama_8029",
        "engine/ladder::an_engine_of_too_small_a_context_is_given_more",
        "unit/ladder::an_engine_planned_for_the_least_context_will_do",
    ),
    "ggml-org/llama.cpp#21678": held(
        "a swap waits for the old model's requests, and theirs are whole",
        "proxy/groups::a_swap_waits_for_the_requests_of_the_old_model",
    ),
    "mostlygeek/llama-swap#19": held(
        "two models in alternation serve everybody",
        "proxy/groups::two_models_that_exclude_each_other_serve_everybody_in_the_end",
    ),
    "ollama/ollama#7758": held(
        "a loaded model's queue has its limit: one runs, one waits, four get 429 with Retry-After",
        "engine/gateway_admission::ollama_7758_one_place_and_a_queue_of_one_take_two_of_six",
        "unit/gateway_admission::ollama_7758_one_place_and_a_queue_of_one_take_two_of_six",
    ),
    "am17an/llama.cpp#44": held(
        "one place: who loads a model is answered by it before it goes for who comes meanwhile; one start of each",
        "proxy/groups::a_model_just_loaded_answers_who_loaded_it_before_it_goes_for_another__am17an_44",
    ),
    "am17an/llama.cpp#36": held(
        "one place: two requests at once for two models that are not loaded are both answered, with one start of each",
        "proxy/groups::two_requests_at_once_for_models_that_are_not_loaded_are_both_answered__am17an_36",
    ),
    "ollama/ollama#5464": held(
        "a server that was planned for a card and has nothing there is told of: the engine is degraded, and serves on",
        "workers/readback::a_server_that_lost_its_card_is_told_and_nothing_is_made_up__ollama_5464",
        "unit/keeper::a_server_without_the_device_it_was_planned_for_is_named__ollama_5464",
    ),
    "mostlygeek/llama-swap#635": held(
        "two hundred requests while the model comes and goes: each whole, none empty",
        "cases/requests::no_answer_is_empty_while_models_come_and_go__llama_swap_635",
    ),
}

POOLS: dict[str, Case] = {
    "lemonade-sdk/lemonade#3276": held(
        "four full windows in a pool of one are admitted one after the other; --parallel and the kind of KV always said",
        "engine/gateway_admission::lemonade_3276_four_full_windows_in_a_pool_of_one_are_admitted_one_after_the_other",
        "workers/llama_swap::lemonade_3276_sequences_and_split_or_shared_kv_are_always_said",
    ),
    "ggml-org/llama.cpp#23652": held(
        "a shared KV pool never overflows: prompt and answer of all that run fit into it",
        "engine/gateway_admission::lemonade_3276_four_full_windows_in_a_pool_of_one_are_admitted_one_after_the_other",
        "unit/gateway_clamping::what_is_counted_and_admitted_never_outgrows_its_reservation",
    ),
}

CLIENTS: dict[str, Case] = {
    "huggingface/huggingface_hub#4398": held(
        "every way to lose a proxy has one outcome, and what can be sent again is rediscovered once",
        "client/transport_losses::lost_once_before_the_first_byte_is_sent_again_and_answered",
        "client/transport_losses::port_closed_is_held_and_rediscovered_once",
        "client/gateway_losses::lost_once_before_the_first_byte_the_caller_gets_its_answer",
        "client/gateway_losses::a_closed_port_is_found_anew_once_and_a_black_hole_is_a_503_at_the_deadline",
        "client/request_policy::every_combination_has_a_decision_and_keeps_the_two_rules",
    ),
    "encode/httpx#327": held(
        "one client over rebuilds, on the same port and on another",
        "client/transport_losses::killed_idle_and_rebuilt_between_two_requests_of_one_client",
        "client/transport_losses::a_keep_alive_connection_closed_under_the_request_is_sent_again",
    ),
    "encode/httpx#1927": held(
        "a stream that was cut is an error, never an end, and not sent again",
        "client/transport_losses::killed_after_three_events_is_interrupted_and_not_sent_again",
        "engine/gateway::a_stream_cut_in_the_middle_never_looks_whole",
        "client/request_policy::an_incomplete_stream_is_never_delivered_as_complete",
    ),
    "jawah/urllib3.future#280": held(
        "at most two servers see a request, and one once a byte of its answer was delivered",
        "client/request_policy::no_request_is_sent_more_than_twice_to_somebody_who_may_work_on_it",
        "client/transport_losses::lost_twice_before_the_first_byte_is_not_sent_to_a_third",
        "engine/survival::a_killed_server_is_replaced_and_no_request_is_lost",
    ),
    "unslothai/unsloth#10911": held(
        "a stream that waits gets comments, which say what for; what does not stream gets none",
        "engine/gateway::a_request_is_held_over_a_killed_proxy_and_the_stream_is_told_why",
    ),
    "liliMozi/openhanako#2517": held(
        "headers come with the first comment, and the held request is sent once",
        "engine/gateway::a_request_is_held_over_a_killed_proxy_and_the_stream_is_told_why",
    ),
}

UNITS: dict[str, Case] = {
    "yrutschle/sslh#168": held(
        "a stop of the unit ends all of it, and its limit is longer than the whole teardown",
        "unit/unit_command::sslh_168_a_stop_of_the_unit_ends_all_of_it__and_not_before_the_engine_could",
    ),
    "systemd/systemd#5868": held(
        "while models load the start limit is extended in time, and READY comes only after",
        "unit/notifying::systemd_5868_a_load_longer_than_the_start_limit_is_given_the_time_it_takes",
    ),
    "systemd/systemd#25961": held(
        "the main process alone speaks; what a manager gave it goes to no keeper and no engine",
        "unit/notifying::systemd_25961_none_of_it_goes_to_keeper_or_engine",
        "engine/notifying::the_manager_hears_of_a_start_and_a_stop_from_the_warden_alone",
        "process/warden::it_speaks_for_the_keeper_to_the_service_manager",
    ),
    "systemd/systemd#43361": held(
        "the doctor warns of an engine that ends with its user's last session",
        "unit/redaction::what_ends_an_engine_with_its_starter_is_told_by_its_control_group",
    ),
    "systemd/systemd#32304": held(
        "an engine and half of its members are killed in one instant: those who are left build it once",
        "cases/requests::an_engine_killed_with_half_of_its_members_is_built_once_by_the_others__systemd_32304",
    ),
    "podman-container-tools/podman#21134": held(
        "a stop of a group in a container is bounded by our grace, not by the ten seconds of its container engine",
        "engine/containers::a_stop_takes_our_grace_and_not_the_container_engines_ten_seconds__podman_21134",
    ),
    "podman-container-tools/podman#27290": held(
        "a start limit that a container's own start period would outlast is refused",
        "workers/command::a_start_limit_is_longer_than_the_period_of_the_containers_own_check__podman_27290",
    ),
    "podman-container-tools/podman#21476": held(
        "a start period that podman ignores, for want of a health command, is refused",
        "workers/command::a_start_period_that_the_container_engine_would_ignore_is_refused__podman_21476",
    ),
    "podman-container-tools/podman#9510": held(
        "what a container is to see is made before it starts",
        "workers/command::what_a_container_is_to_see_is_made_before_it_starts",
        "workers/payload::a_directory_that_a_container_mounts_is_made__podman_9510",
    ),
}

DEVICES: dict[str, Case] = {
    "kubernetes-sigs/dra-driver-nvidia-gpu#1073": held(
        "a device that cannot tell its memory shares the host's, and is counted once",
        "devices/nvml::a_device_without_memory_figures_shares_the_hosts__dra_driver_nvidia_gpu_1073",
    ),
    "XuehaiPan/nvitop#208": held(
        "the host's figures given as a device's own are the host's",
        "devices/nvml::host_figures_given_as_a_devices_own_are_the_hosts__nvitop_208",
        "devices/nvml::a_card_as_large_as_the_host_is_a_card",
    ),
    "Syllo/nvtop#449": held(
        "what a unified device can give is what the host has available",
        "devices/nvml::a_unified_total_is_no_budget__nvtop_449",
    ),
    "NVIDIA/nvidia-container-toolkit#842": held(
        "a GPU in MIG mode is its slices, and unknown where they cannot be asked",
        "devices/nvml::a_gpu_in_mig_mode_is_its_slices__nvidia_container_toolkit_842",
        "devices/nvml::where_neither_gpu_nor_slice_can_be_asked_it_is_unknown__nvidia_container_toolkit_842",
    ),
    "wookayin/gpustat#90": held(
        "without a driver: no devices, a reason, no import that fails",
        "devices/nvml::without_a_driver_the_list_is_empty_with_its_reason__gpustat_90",
    ),
    "sgl-project/sglang-omni#1685": held(
        "what processes of another namespace hold is unattributed, never nothing",
        "devices/nvml::pids_of_another_namespace_are_nobodys__sglang_omni_1685",
        "devices/nvml::in_a_namespace_of_its_own_an_equal_number_is_not_the_same_process__sglang_omni_1685",
    ),
    "gpustack/gpustack#1633": held(
        "devices are named by UUID, in the order of the bus, and engines number them so",
        "devices/nvml::devices_stand_in_the_order_of_the_bus__gpustack_1633",
        "unit/group::devices_are_numbered_as_the_configuration_says_if_it_does__gpustack_1633",
    ),
}

LIVE_MEMORY: dict[str, Case] = {
    "vllm-project/vllm#55827": held(
        "of two that plan at once each sees the other's promise; the sum of grants stays within the device",
        "devices/reservations::of_two_that_plan_at_once_each_sees_the_others_promise_and_a_dead_ones_is_free__vllm_55827",
        "devices/reservations::the_sum_of_grants_stays_within_the_device_whatever_its_free_figure_does__vllm_55827",
    ),
    "tobocop2/lilbee#547 (handoff)": held(
        "a successor waits for its predecessor's memory, and plans with all of it",
        "unit/planning::a_successor_plans_with_what_its_predecessor_gave_back__lilbee_547_handoff",
        "devices/reservations::a_predecessor_that_never_goes_ends_the_wait_at_its_limit",
    ),
    "ollama/ollama#11997": held(
        "what is free already is not waited for, and nothing is for more than a second",
        "unit/planning::what_is_free_already_is_not_waited_for__ollama_11997",
    ),
    "ollama/ollama#9926": held(
        "other programs' noise neither holds a plan up nor is taken for memory that comes back",
        "unit/planning::other_programs_noise_neither_stops_nor_spoils_it__ollama_9926",
    ),
    "ollama/ollama#16637": held(
        "pages that a file backs are listed apart from a server's own",
        "workers/readback::file_backed_pages_are_listed_apart__ollama_16637",
    ),
    "ollama/ollama#5700": held(
        "ZFS's cache counts as available up to a cap, and the figure says so",
        "devices/host::the_caches_of_zfs_are_added_up_to_a_cap__ollama_5700",
    ),
    "peonist-ai/halogen-flash-server#33": held(
        "free blocks of 2 MiB are counted, too few are a warning, and a load that stalls for them says so",
        "devices/remarks::the_free_blocks_are_counted_and_too_few_are_a_warning__halogen_33",
        "devices/remarks::stalls_during_a_load_are_a_difference_of_the_kernels_count__halogen_33",
        "unit/group::a_load_that_stalls_for_contiguous_memory_says_so_and_nothing_else_does__halogen_33",
    ),
    "seed:003 (silent clamp)": held(
        "what was lowered is told as requested against effective; without evidence it is unknown",
        "workers/readback::a_clamp_is_told_as_requested_against_effective__seed_003",
        "workers/readback::what_is_served_as_asked_for_warns_of_nothing__seed_003",
        "workers/readback::without_evidence_it_is_unknown_and_never_fine__seed_003",
    ),
    "seed:003 (linear arena)": held(
        "two measured boots tell the third, and the largest that fits",
        "workers/readback::two_boots_tell_the_third__seed_003",
    ),
    "ggml-org/llama.cpp#21692": held(
        "each process of a group has its line, the proxy too",
        "workers/readback::there_is_a_line_for_every_process_of_the_group__llama_cpp_21692",
    ),
}

LILBEE: dict[str, Case] = {
    "W1": held(
        "an error of the transport ends no membership and touches no engine",
        "cases/lilbee::an_error_of_the_transport_ends_no_membership_and_touches_no_engine__w1",
        "engine/members::w1_a_transport_blip_never_makes_a_member_leave",
    ),
    "W2": held(
        "one dead proxy is no business of another group's processes and streams",
        "cases/lilbee::one_dead_proxy_is_no_business_of_another_groups_stream__w2",
        "engine/survival::a_killed_proxy_is_replaced_on_the_same_port_with_its_servers",
    ),
    "W3": held(
        "a stopped proxy or server is noticed, its group alone rebuilt, and its request answered",
        "engine/health::a_stopped_proxy_is_noticed_and_its_group_rebuilt_alone",
        "engine/health::a_stopped_server_is_noticed_and_its_group_rebuilt_alone",
    ),
    "W4": held(
        "a stepped clock hides nothing from stop and changes nobody's identity",
        "cases/lilbee::a_stepped_clock_changes_nobodys_identity_and_stop_finds_all__w4",
        "cases/lilbee::a_moved_source_of_the_boot_time_lets_nobody_be_killed_or_overlooked__w4",
    ),
    "W5": held(
        "no process is lost for want of a record: full disk, read-only slot, a directory in its place",
        "cases/lilbee::a_disk_that_fills_up_under_a_living_engine_loses_no_process__w5",
        "cases/lilbee::a_slot_that_became_read_only_is_stopped_at_the_first_try_and_usable_after_it__w5",
        "cases/lilbee::a_record_that_cannot_be_written_at_all_hides_no_process__w5",
        "cases/off_switch::a_disk_that_is_full",
    ),
    "W6": held(
        "whoever watches the members is watched: killed or stopped, it is replaced, and the last one out is seen",
        "cases/lilbee::whoever_watches_the_members_is_replaced_and_the_last_one_out_is_seen__w6",
        "process/warden_watch::a_keeper_that_is_stopped_or_says_nothing_is_replaced_and_its_children_never_notice",
    ),
    "W7": held(
        "no live member is ever invisible, however much it is probed",
        "process/membership::members_come_and_go_under_probes_and_none_is_ever_lost__filelock_574",
        "unit/membership::the_file_is_locked_before_it_shows",
    ),
    "W8": held(
        "groups load side by side, build.lock is not held meanwhile, and a slow driver is asked few times",
        "cases/lilbee::a_slow_driver_is_asked_few_times_and_no_lock_is_held_meanwhile__w8",
        "cases/starting::nobody_waits_for_a_load_but_requests__model_runner_760",
    ),
    "W10": held(
        "the watch for a parent's death asks no clock, and a serving front end stays through a step of it",
        "process/parents::no_clock_is_asked__w10",
        "process/serving::a_clock_that_is_set_changes_nothing__w10",
    ),
    "W12": held(
        "a change of configuration restarts only the group it touches",
        "engine/changing::a_change_restarts_only_the_group_it_touches",
    ),
    "W15": held(
        "members of two pid namespaces share a slot; identities of another namespace are unknown and never signalled",
        "cases/lilbee::members_of_two_pid_namespaces_share_a_slot_and_harm_nobody__w15",
        "unit/identity::another_namespace_is_unknown",
        "unit/identity::another_namespace_or_boot_is_never_signalled",
    ),
    "W17": held(
        "a port taken before its server bound it is left alone; the group comes up on another",
        "cases/traps::2_a_stranger_that_is_healthy_on_a_servers_port_is_not_taken_for_the_server",
        "engine/bad_input::a_port_that_somebody_took_meanwhile_is_not_fought_for",
    ),
    "W18": held(
        "a log is cut, and of one that was flooded between two looks only the end is kept",
        "unit/logfiles::a_file_above_its_limit_is_kept_once_and_emptied",
        "unit/logfiles::of_a_flood_only_the_end_is_kept__w18",
    ),
    "W24": held(
        "many that fail at once cause one rebuild, and none that fails late causes another",
        "engine/members::w24_a_late_failure_never_discards_what_was_just_rebuilt",
        "engine/sharing::of_many_that_come_at_once_one_builds_and_the_others_bind",
        "client/transport_losses::sixteen_threads_share_one_transport_over_a_kill",
        "client/request_policy::only_a_refusal_or_a_stranger_on_the_port_proves_a_generation_gone",
    ),
}

PEOPLE: dict[str, Case] = {
    "anomalyco/opencode#14504": held(
        "a member that outlives its terminal and does nothing is seen as that: age, last use and terminal",
        "engine/ps::ps_shows_age_last_use_and_terminal_also_of_who_does_nothing__opencode_14504",
    ),
}

TRAPS: dict[str, Case] = {
    "1 a crash leaves the servers": held(
        "no crash of a proxy leaves its server",
        "cases/traps::1_no_crash_of_a_proxy_leaves_its_server_behind",
        "workers/launcher::a_server_dies_with_its_parent",
    ),
    "2 health by a stranger": held(
        "a stranger's 200 is nobody's readiness",
        "cases/traps::2_a_stranger_that_is_healthy_on_a_servers_port_is_not_taken_for_the_server",
    ),
    "3 an unread pipe": held("output goes to files", "cases/traps::3_nobodys_output_is_a_pipe_that_somebody_must_read"),
    "4 preload before listening": held(
        "nothing is preloaded, and a taken port leaves no server",
        "cases/traps::4_no_server_is_started_before_its_proxy_listens",
        "engine/bad_input::a_port_that_somebody_took_meanwhile_is_not_fought_for",
    ),
    "5 SIGTERM drains": held(
        "a stop in mid-stream is bounded",
        "cases/traps::5_a_stop_in_mid_stream_does_not_wait_for_the_stream",
        "engine/stopping::a_stop_in_the_middle_of_a_load_does_not_wait_for_it",
    ),
    "6 a reload stops everything": held(
        "no proxy reloads; a change is a new process of its group",
        "cases/traps::6_no_proxy_reloads_its_configuration_by_itself",
        "engine/changing::a_change_restarts_only_the_group_it_touches",
    ),
    "7 a cut stream looks whole": held(
        "without its last words no stream is complete",
        "engine/survival::a_killed_server_is_replaced_and_no_request_is_lost",
        "client/request_policy::an_incomplete_stream_is_never_delivered_as_complete",
    ),
    "8 a health check without an end": held(
        "our start limit ends it", "cases/traps::8_a_health_check_that_never_answers_ends_at_our_limit"
    ),
    "9 a blocking unload": held(
        "an unload holds up no other group", "cases/traps::9_an_unload_that_takes_its_time_holds_up_no_other_group"
    ),
    "10 no liveness, no back-off": held(
        "few starts, however many requests; a frozen server is noticed",
        "engine/health::a_stopped_proxy_is_noticed_and_its_group_rebuilt_alone",
        "engine/health::a_stopped_server_is_noticed_and_its_group_rebuilt_alone",
        "cases/traps::10_many_requests_to_a_server_that_cannot_start_are_few_starts",
    ),
}

ACCESS: dict[str, Case] = {
    "pr2502/ra-multiplex#42": held(
        "another user's ways in are closed: the control socket by mode and peer credentials, every port by a key",
        "engine/gateway_access::another_users_ways_in_are_closed__ra_multiplex_42",
        "unit/control::another_users_process_is_not_answered__ra_multiplex_42",
    ),
    "ollama/ollama#12476": held(
        "no key, a wrong one, a foreign Host or Origin: refused; the key is in no argv, environment, log, record or status",
        "engine/gateway_access::without_the_key_nobody_comes_in_and_it_is_nowhere_to_be_read__ollama_12476",
        "unit/gateway_access::a_file_that_others_may_read_is_refused",
    ),
}

PLANNED: dict[str, Case] = {
    "gpustack/gguf-parser-go#28": held(
        "a hybrid model is charged for its attention layers and a fixed state",
        "workers/planner/facts::gguf_parser_go_28_a_hybrid_model_is_charged_only_for_its_attention_layers",
    ),
    "gpustack/gguf-parser-go#32": held(
        "sliding layers are charged for their window; an unknown pattern is an upper bound and says so",
        "workers/planner/facts::gguf_parser_go_32_sliding_layers_are_not_charged_for_the_whole_context",
        "workers/planner/facts::gguf_parser_go_32_an_unknown_pattern_is_an_upper_bound_and_says_so",
        "workers/planner/checked::an_upper_bound_of_the_header_costs_no_window",
    ),
    "ollama/ollama#10128": held(
        "K and V by the block size of each type, as argv asks for them",
        "workers/planner/facts::ollama_10128_each_type_of_the_cache_has_its_size_and_k_and_v_are_apart",
    ),
    "ollama/ollama#14120": held(
        "the cache is planned for the tokens that are allocated, split or shared",
        "workers/planner/facts::ollama_14120_kv_is_for_the_tokens_that_are_allocated",
    ),
    "ggml-org/llama.cpp#11681": held(
        "--ctx-size is the window times the sequences",
        "workers/planner/facts::llama_cpp_11681_ctx_size_is_the_window_times_the_sequences",
    ),
    "mohitsoni48/TurboLLM#99": held(
        "flags that undo each other are refused, and an explicit layer count is planned as given",
        "workers/planner/decide::turbollm_99_combinations_that_undo_each_other_are_refused",
        "workers/planner/decide::turbollm_99_an_explicit_layer_count_is_planned_as_given_and_nothing_is_offloaded_behind_it",
        "workers/planner/found::where_weights_lie_is_held_against_the_plan__turbollm_99",
    ),
    "ggml-org/llama.cpp#20490": held(
        "experts that memory does not hold are refused with their bytes, what is free, and what would fit",
        "workers/planner/decide::llama_cpp_20490_experts_that_system_memory_does_not_hold_are_refused_with_numbers",
    ),
    "ggml-org/llama.cpp#23446": held(
        "a server that leaks turns a soak red by its slope, and one that does not is green",
        "engine/soak_controls::a_leak_turns_the_run_red",
        "chaos/soak_invariants::a_short_run_is_not_judged_by_its_slope_and_one_that_was_not_measured_is_unknown",
        "engine/soak::rounds_with_kills_are_green_and_leave_nothing",
    ),
    "ollama/ollama#11772": held(
        "experts beside a card are memory that its driver may lock: a line of their own, held against the limit",
        "workers/planner/decide::ollama_11772_experts_in_system_memory_are_a_line_of_their_own",
        "workers/planner/lint::ollama_11772_experts_beside_a_card_that_may_not_be_locked",
        "devices/remarks::a_limit_of_locked_memory_below_what_experts_need_is_told__ollama_11772",
    ),
    "Osmantic/ODS#3324": held(
        "equal attention is equal KV, whatever the number of parameters",
        "workers/planner/facts::ods_3324_equal_attention_is_equal_kv_whatever_the_parameters",
    ),
    "tobocop2/lilbee#547 (offload in fit)": held(
        "memory is borrowed only on discrete hosts, for experts, with offload; the flag on a dense model is rejected",
        "workers/planner/decide::lilbee_547_system_memory_is_borrowed_only_on_discrete_with_offload_for_moe",
        "workers/planner/decide::lilbee_547_an_offload_flag_on_a_dense_model_is_rejected_not_ignored",
        "workers/planner/decide::unified_memory_is_counted_once",
    ),
    "ollama/ollama#18264": held(
        "the prompt cache is in argv and in the ledger, and several servers share what there is",
        "workers/planner/decide::ollama_18264_the_prompt_cache_is_in_the_ledger_and_in_argv",
    ),
    "ggml-org/llama.cpp#21690": held(
        "one prompt that is being saved is a transient of the ledger",
        "workers/planner/decide::llama_cpp_21690_one_prompt_that_is_being_saved_is_a_transient",
        "workers/planner/decide::llama_cpp_21690_a_recorded_state_is_no_larger_than_the_plans",
    ),
    "seed:003 (reserve is not a reservation)": held(
        "what each of ten reserves binds, and where raising it changes nothing",
        "workers/planner/pooled::seed_003_reserve_is_not_a_reservation",
    ),
    "NousResearch/hermes-agent#111323": held(
        "a flag that a build does not take is an error that names flag, program and build; nothing else is tried",
        "workers/flag_check::an_unknown_flag_is_one_error_before_anything_is_started__hermes_agent_111323",
        "workers/flag_check::the_real_servers_take_what_their_help_names_and_refuse_what_we_say_they_do",
        "engine/failing::a_bad_flag_is_named",
    ),
    "yazon/flexllama#15": held(
        "flash attention is said in the form that the binary knows",
        "workers/planner/decide::flexllama_15_flash_attention_in_the_form_that_the_binary_knows",
    ),
}

AGENTS: dict[str, Case] = {
    "wirux/mcp-markdown-vault#45": held(
        "a server whose host was killed ends though its standard input stays open, and the engine with it",
        "process/parents::a_killed_host_is_noticed_under_a_subreaper_with_stdin_open__mcp_markdown_vault_45",
        "engine/serving::an_mcp_server_goes_with_its_killed_host_and_the_engine_with_it__mcp_markdown_vault_45",
    ),
    "Tencent-Hunyuan/UniRL#276": held(
        "the end of the thread that started something is nobody's death",
        "process/parents::the_end_of_the_thread_that_started_us_is_nobodys_death__unirl_276",
    ),
    "python-trio/trio#2333": held(
        "in a host's worker thread the library works, and sets no signal handler",
        "engine/serving::in_a_hosts_worker_thread_no_signal_handler_is_set__trio_2333",
        "engine/members::an_engine_is_used_in_any_thread_and_no_signal_handler_is_installed",
    ),
    "tobocop2/lilbee#547 (hard exit)": held(
        "however a member ends, by os._exit, a signal, an exception or the end of its thread, it is one no more",
        "process/membership::every_way_to_end_ends_the_membership",
    ),
    "NousResearch/hermes-agent#100360": held(
        "a front end that is there four times is one engine, and each of them under the documented memory, with no model in it",
        "engine/sharing::four_front_ends_that_do_nothing_hold_little_and_no_model__hermes_agent_100360",
    ),
    "anomalyco/opencode#2974": held(
        "a stream is never silent for as long as a client waits, so that a limit which no setting changes ends nothing",
        "engine/agents_page::a_client_whose_own_limit_cannot_be_set_gets_its_answer__opencode_2974_cline_9328",
    ),
    "cline/cline#9328": held(
        "the same, of the five minutes without a byte in which a long prompt is read",
        "engine/agents_page::a_client_whose_own_limit_cannot_be_set_gets_its_answer__opencode_2974_cline_9328",
    ),
}

GROUPS: dict[str, tuple[int, dict[str, Case]]] = {
    "A ownership, orphans and teardown": (14, OWNERSHIP),
    "B one engine for many processes": (12, SHARING),
    "C membership and build locks": (8, LOCKS),
    "D process identity and state files": (7, IDENTITY),
    "E health, hangs and rebuild in place": (15, HEALTH),
    "F idle time and queues": (12, LIFETIME),
    "G client connections and streams": (6, CLIENTS),
    "H memory, as it lives": (10, LIVE_MEMORY),
    "H, I and M memory, as it is planned": (16, PLANNED),
    "I shared KV pools": (2, POOLS),
    "J devices": (7, DEVICES),
    "K service managers": (9, UNITS),
    "L agents, their hosts and their limits": (7, AGENTS),
    "L what people see": (1, PEOPLE),
    "M builds and files under an engine": (3, BUILDS),
    "N several users, access": (2, ACCESS),
    "lilbee": (14, LILBEE),
    "llama-swap's ten": (10, TRAPS),
}
"""Each with how many cases there are that concern what we are for: one that is dropped is missed."""
