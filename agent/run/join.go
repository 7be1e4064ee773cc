package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/intercept/filter"
	"github.com/tsugiki/tsugiki/internal/cgroup"
	"github.com/tsugiki/tsugiki/internal/launch"
	"github.com/tsugiki/tsugiki/internal/netns"
	"github.com/tsugiki/tsugiki/internal/programs"
	"github.com/tsugiki/tsugiki/shim"
)

// joinPatience is how long the daemon may take to attach a program.
const joinPatience = 30 * time.Second

// retracePause is the pause between attempts to follow a container again. A daemon that has removed
// the container may take as long as followPatience to report its last decisions, as for any answer
// (api.requestLimit). One that has not answered is given awayPatience.
const (
	retracePause   = 200 * time.Millisecond
	followPatience = 30 * time.Second
	awayPatience   = 2 * time.Second
)

// answerMax is larger than any answer of the daemon to a listener, in bytes.
const answerMax = 1 << 20

// Joined is a program of this process in a container of the daemon.
type Joined struct {
	client  *api.Client
	log     *slog.Logger
	name    string
	id      string
	group   *cgroup.Group
	process *launch.Process
	signals chan os.Signal
	// followed is closed when all decisions about the container have been logged; nil if they are
	// not wanted. After gone, no other daemon is asked about the container. unfollow ends the
	// following.
	followed chan struct{}
	gone     func()
	unfollow func()
}

// AgentAt finds the daemon of a run directory, or returns "" if there is none. It also finds a
// daemon that was killed, because the next daemon will take over its containers.
func AgentAt(runDir string) string {
	socket := api.SocketIn(runDir)
	if _, err := os.Lstat(socket); err != nil {
		return ""
	}
	return socket
}

// Join starts a program in a new container of the daemon. The daemon's host namespace is then the
// container's host. On an error nothing is left, and the program has not run.
func Join(client *api.Client, p Program, texts api.Rules) (*Joined, error) {
	p.nameIt()
	j := &Joined{client: client, log: p.Log.With("container", p.Name), name: p.Name, signals: catchSignals()}
	path, err := launch.Lookup(p.Command[0])
	if err != nil {
		return nil, err
	}
	ns, err := p.openOwn()
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	j.id = fmt.Sprintf("run-%d-%x", os.Getpid(), time.Now().UnixNano())
	r := api.Registration{
		ID: j.id, Name: p.Name,
		Rules:        &texts,
		LoopbackOnly: p.ownIsNew(), Programs: true,
	}
	if p.User != nil {
		r.UID, r.GID = p.User.UID, p.User.GID
	}
	registered, err := client.Register(r)
	if err != nil {
		return nil, err
	}
	j.group = cgroup.At(registered.Cgroup)
	if p.Log.Enabled(context.Background(), slog.LevelInfo) {
		err = j.follow(p.Log.Handler())
	}
	if err == nil {
		err = j.launch(&p, path, ns, registered)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func (j *Joined) launch(p *Program, path string, ns *netns.NS, r api.Registered) error {
	mode, known := filter.ParseMode(r.Filter.Mode)
	if !known {
		return fmt.Errorf("the agent asks for mode %q, which this program does not know", r.Filter.Mode)
	}
	prog, err := filter.Build(runtime.GOARCH, filter.Options{
		Mode: mode, Datagrams: r.Filter.Datagrams, AFGraft: r.Filter.AFGraft, Untrapped: r.Filter.Untrapped, Accepts: r.Filter.Accepts,
		Translated: r.Filter.Translated, Alone: true,
	})
	if err != nil {
		return err
	}
	dir, err := j.group.Open()
	if err != nil {
		return err
	}
	defer dir.Close()
	l := launch.Spec{
		Path: path, Args: p.Command, Netns: ns.File(), CgroupDir: dir, Filter: prog, Caps: p.Caps, User: p.User,
		NeedsPreload: mode == filter.Preload,
	}
	if l.Launcher, err = programs.Find(launch.Program); err != nil {
		return err
	}
	if r.Library != "" {
		if l.Preload, err = programs.FindIn(shim.LibraryFile, []string{r.Library}); err != nil {
			return err
		}
	}
	j.process, err = launch.Start(l, func(listener *os.File, pid int) error {
		err := api.Patiently(r.Listener, func() error { return handListener(r.Listener, r.Token, listener, pid) })
		if err != nil {
			return err
		}
		return listener.Close() // the daemon has its own
	})
	return err
}

// handListener sends a filter's listener to the daemon, and waits until the program is attached.
func handListener(socket, token string, listener *os.File, pid int) error {
	state, err := json.Marshal(specs.ContainerProcessState{
		Version: specs.Version, Fds: []string{specs.SeccompFdName}, Pid: pid, Metadata: token,
		State: specs.State{Version: specs.Version, Status: specs.StateCreating, Pid: pid},
	})
	if err != nil {
		return err
	}
	var conn *net.UnixConn
	err = api.Nearby(socket, func(short string) (err error) {
		conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return fmt.Errorf("hand seccomp listener to the agent: %w", err)
	}
	defer conn.Close()
	err = conn.SetDeadline(time.Now().Add(joinPatience))
	if err == nil {
		_, _, err = conn.WriteMsgUnix(state, unix.UnixRights(int(listener.Fd())), nil)
	}
	if err == nil {
		err = conn.CloseWrite()
	}
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(io.LimitReader(conn, answerMax))
	}
	var failed api.Failure
	if err == nil && len(answer) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = json.Unmarshal(answer, &failed)
	}
	if err != nil {
		return fmt.Errorf("hand seccomp listener to the agent: %w", err)
	}
	if failed.Error != "" {
		return errors.New(failed.Error)
	}
	return nil
}

// Wait waits for the program to end, passes signals on to it meanwhile, and
// returns how it ended.
func (j *Joined) Wait() (unix.WaitStatus, error) { return wait(j.process.PID, j.signals) }

// follow logs the daemon's decisions about the container. It goes on when another daemon takes
// over.
func (j *Joined) follow(log slog.Handler) error {
	ctx, cancel := context.WithCancel(context.Background())
	lines, err := j.client.Trace(ctx, j.name)
	if err != nil {
		cancel()
		return err
	}
	there, gone := context.WithCancel(ctx)
	j.unfollow, j.gone, j.followed = cancel, gone, make(chan struct{})
	go func() {
		defer close(j.followed)
		for err := api.Relog(lines, log); err != nil && there.Err() == nil; err = api.Relog(lines, log) {
			if lines, err = j.retrace(ctx, there); err != nil {
				return
			}
		}
	}()
	return nil
}

// retrace waits for a daemon that has the container, which there is until a context ends. The trace
// ends with ctx.
func (j *Joined) retrace(ctx, there context.Context) (io.ReadCloser, error) {
	again := time.NewTicker(retracePause)
	defer again.Stop()
	for {
		lines, err := j.client.Trace(ctx, j.name)
		if err == nil || errors.Is(err, api.ErrNotFound) {
			return lines, err
		}
		select {
		case <-again.C:
		case <-there.Done():
			return nil, there.Err()
		}
	}
}

// Close kills the processes that the program has left running, and has the daemon remove the
// container. If there is no daemon now, the next one removes the container.
func (j *Joined) Close() error {
	removed, err := j.client.Remove(j.name, j.id)
	away := errors.Is(err, api.ErrNoAgent)
	switch {
	case away:
		err = j.group.Kill()
	case errors.Is(err, api.ErrNotFound):
		err = nil
	}
	if j.followed != nil {
		j.awaitFollowed(err == nil && !away)
	} else if removed.Cause != "" { // else the trace has logged it
		j.log.Warn(removed.Cause)
	}
	return err
}

// awaitFollowed waits until all decisions about the container have been logged. The trace of a daemon
// ends with the container or with the daemon.
func (j *Joined) awaitFollowed(removed bool) {
	defer j.unfollow()
	patience := awayPatience
	if removed {
		j.gone()
		patience = followPatience
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case <-j.followed:
	case <-wait.C: // no daemon reports the rest
	}
}
