/*
 * interrupted ROUNDS: binds sockets while signals come at all times, whose handler lets calls be
 * restarted. It prints how many binds the kernel has repeated though they were carried out, and
 * how many went otherwise than they have to. A repeated bind says EINVAL, and the socket is bound.
 * It makes more rounds if signals were few.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals, in_round;

/* The next signal comes later after some in one round: else, on a busy machine, no call ends. */
static void set_alarm(void)
{
	int doubled = in_round / 4 < 12 ? in_round / 4 : 12;
	struct itimerval once = {{0, 0}, {0, 150 << doubled}};

	setitimer(ITIMER_REAL, &once, NULL);
}

static void count(int sig)
{
	(void)sig;
	signals++;
	in_round++;
	set_alarm();
}

/* try_bind returns 0, EINVAL if the socket was bound already, or -1, errno says why. */
static int try_bind(int s)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	socklen_t length = sizeof(any);
	int repeated = 0;

	if (bind(s, (struct sockaddr *)&any, length) != 0) {
		if (errno != EINVAL)
			return -1;
		repeated = EINVAL;
	}
	if (getsockname(s, (struct sockaddr *)&any, &length) != 0)
		return -1;
	if (any.sin_port == 0) {
		errno = EINVAL;
		return -1;
	}
	return repeated;
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = count, .sa_flags = SA_RESTART};
	int repeated = 0, wrong = 0, rounds = argc == 2 ? atoi(argv[1]) : 0;

	if (sigaction(SIGALRM, &act, NULL) != 0)
		return 1;
	for (int i = 0; i < rounds || signals <= rounds / 100; i++) {
		int s, result;

		if (i == 0 || in_round > 0) { /* else the last alarm is yet to come */
			in_round = 0;
			set_alarm();
		}
		s = socket(AF_INET, SOCK_STREAM, 0);
		result = s < 0 ? -1 : try_bind(s);
		if (result < 0) {
			fprintf(stderr, "round %d: %s\n", i, strerrorname_np(errno));
			wrong++;
		} else if (result == EINVAL) {
			repeated++;
		}
		close(s);
	}
	printf("%d repeated, %d wrong\n", repeated, wrong);
	return 0;
}
