// SPDX-License-Identifier: Apache-2.0
/* Many calls, and callers that go in the middle of them. */
#include "attack.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* Closed with a reset: ports that linger would have to be looked around for. */
static int load_dial(const struct attack_addr *to)
{
	int fd = socket(to->sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int result = fd < 0 ? fd : connect(fd, &to->sa, to->len);
	struct linger reset = {1, 0};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));

	close(fd);
	return result;
}

/*
 * A load that must leave nothing behind comes twice: a tenth of it first, for
 * what is made once and kept. The test looks in between and at the end.
 */
static int load_twice(int argc, char **argv, int (*load)(int count, const struct attack_addr *to))
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	int count = atoi(argv[0]), failed = load(count / 10, &to);
	char c;

	attack_note("warm", "ok");
	attack_need("wait", read(STDIN_FILENO, &c, 1));
	failed += load(count, &to);
	attack_note("failed", "%d of %d", failed, count + count / 10);
	attack_hold();
	return 0;
}

/* "short COUNT ADDR": connections one after another, from four processes. */
static int load_connections(int count, const struct attack_addr *to)
{
	int failed = 0, status;

	for (int p = 0; p < 4; p++) {
		if (fork() != 0)
			continue;
		for (int i = 0; i < count / 4; i++)
			failed += load_dial(to) < 0;
		_exit(failed > 255 ? 255 : failed);
	}
	while (wait(&status) > 0)
		failed += WEXITSTATUS(status);
	return failed;
}

static int load_short(int argc, char **argv)
{
	return load_twice(argc, argv, load_connections);
}

/* Calls of every kind, without end. */
static _Noreturn void load_calls(const struct attack_addr *to)
{
	struct attack_addr own = {.len = sizeof(own.in)};

	own.in.sin_family = AF_INET;
	own.in.sin_port = htons(9999);
	for (int n = 0;; n++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

		if (n % 4 == 1)
			bind(fd, &own.sa, own.len);
		if (n % 4 == 2)
			listen(fd, 1);
		connect(fd, &to->sa, to->len);
		close(fd);
	}
}

/* "killed COUNT ADDR": children that are killed in the middle of their calls. */
static int load_victims(int count, const struct attack_addr *to)
{
	unsigned int seed = 1;

	for (int i = 0; i < count; i++) {
		pid_t child = fork();

		if (child == 0)
			load_calls(to);
		usleep((useconds_t)(rand_r(&seed) % 2000));
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	return 0;
}

static int load_killed(int argc, char **argv)
{
	return load_twice(argc, argv, load_victims);
}

/* "exec COUNT ADDR": a process connects and becomes another, again and again. */
static int load_become(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);
	char left[16];

	if (load_dial(&to) < 0)
		return 1;
	if (atoi(argv[0]) == 0)
		return 0;
	snprintf(left, sizeof(left), "%d", atoi(argv[0]) - 1);
	execl("/proc/self/exe", "attack", "become", left, argv[argc - 1], NULL);
	return 1;
}

static int load_execs(int count, const struct attack_addr *to)
{
	char left[16];
	int status = 1;

	snprintf(left, sizeof(left), "%d", count);
	if (fork() == 0) {
		execl("/proc/self/exe", "attack", "become", left, to->text, NULL);
		_exit(1);
	}
	wait(&status);
	return status != 0;
}

static int load_exec(int argc, char **argv)
{
	return load_twice(argc, argv, load_execs);
}

static const struct attack_addr *load_to;
static pthread_rwlock_t load_gate = PTHREAD_RWLOCK_INITIALIZER;
static atomic_int load_failed;

static void *load_thread(void *arg)
{
	pthread_rwlock_rdlock(&load_gate);
	pthread_rwlock_unlock(&load_gate);
	if (load_dial(load_to) < 0)
		atomic_fetch_add(&load_failed, 1);
	return arg;
}

/* "threads COUNT ADDR": that many threads connect at once. */
static int load_crowd(int count, const struct attack_addr *to)
{
	pthread_t *threads = calloc((size_t)count, sizeof(*threads));
	pthread_attr_t attr;

	load_to = to;
	pthread_rwlock_wrlock(&load_gate);
	atomic_store(&load_failed, 0);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 65536);
	for (int i = 0; threads != NULL && i < count; i++)
		if (pthread_create(&threads[i], &attr, load_thread, NULL) != 0)
			attack_die("make thread");
	pthread_rwlock_unlock(&load_gate);
	for (int i = 0; threads != NULL && i < count; i++)
		pthread_join(threads[i], NULL);
	free(threads);
	return load_failed;
}

static int load_threads(int argc, char **argv)
{
	return load_twice(argc, argv, load_crowd);
}

static void *load_blocked(void *arg)
{
	load_dial(arg);
	return NULL;
}

/* "blackhole COUNT NOWHERE ADDR": others connect while some wait for nobody. */
static int load_blackhole(int argc, char **argv)
{
	struct attack_addr nowhere = attack_addr(argv[1]), to = attack_addr(argv[argc - 1]);
	pthread_t thread;

	for (int i = 0; i < atoi(argv[0]); i++)
		pthread_create(&thread, NULL, load_blocked, &nowhere);
	usleep(100000);
	for (int i = 0; i < 20; i++)
		attack_say("connect", load_dial(&to));
	_exit(0);
}

/* Signals, written down as they come, until SIGTERM. */
static void load_signal(int sig)
{
	char line[] = "signal: 00\n";

	line[8] = (char)('0' + sig / 10);
	line[9] = (char)('0' + sig % 10);
	if (write(STDOUT_FILENO, line, sizeof(line) - 1) < 0 || sig == SIGTERM)
		_exit(7);
}

static int load_signals(int argc, char **argv)
{
	static const int signals[] = {SIGINT, SIGUSR1, SIGUSR2, SIGHUP, SIGTERM};

	(void)argc, (void)argv;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		signal(signals[i], load_signal);
	attack_note("ready", "ok");
	for (;;)
		pause();
	return 0;
}

/* "family ADDR": a daemonised grandchild and one that ignores all signals. */
static int load_family(int argc, char **argv)
{
	struct attack_addr to = attack_addr(argv[argc - 1]);

	for (int i = 0; i < 2; i++) {
		if (fork() != 0)
			continue;
		setsid();
		if (fork() != 0)
			_exit(0);
		for (int sig = 1; sig < 32; sig++)
			signal(sig, SIG_IGN);
		attack_note("grandchild", "%d", getpid());
		connect(socket(AF_INET, SOCK_STREAM, 0), &to.sa, to.len);
		for (;;)
			pause();
	}
	while (wait(NULL) > 0)
		;
	attack_note("ready", "ok");
	attack_hold();
	return 0;
}

const struct attack_case load_cases[] = {
	{"become", load_become},   {"short", load_short},     {"killed", load_killed},
	{"exec", load_exec},	   {"threads", load_threads}, {"blackhole", load_blackhole},
	{"signals", load_signals}, {"family", load_family},   {0},
};
