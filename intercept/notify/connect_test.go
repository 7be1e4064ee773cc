package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/sys/sockaddr"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// connectOnce writes how connect(2) ends.
func connectOnce() int {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(s, sockaddr.Of(pathAt))
	}
	fmt.Println(err)
	return 0
}

// pausingLog keeps the first call from being answered, once it has been carried out, until goOn is closed.
type pausingLog struct {
	slog.Handler
	first          sync.Once
	answered, goOn chan struct{}
}

func (l *pausingLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "answered" {
		l.first.Do(func() {
			close(l.answered)
			<-l.goOn
		})
	}
	return l.Handler.Handle(ctx, r)
}

// A connect that a signal ends once the supervisor has connected gets its answer when the kernel starts it again.
func TestInterruptedConnect(t *testing.T) {
	w := newAcceptWorld(t, "connect", 0)
	goOn := sync.OnceFunc(func() { close(w.log.goOn) })
	defer goOn()
	select {
	case <-w.log.answered:
	case <-time.After(testkit.Patience):
		t.Fatal("connect is not answered")
	}
	first := w.last.Load()
	w.must(unix.Tgkill(w.process.Pid, first.Thread, unix.SIGURG))
	testkit.Eventually(t, func() error {
		if w.s.listener.Valid(first.ID) {
			return errors.New("the signal has not ended the call")
		}
		return nil
	})
	goOn()
	if got := w.hears(); got != "<nil>" {
		t.Errorf("connect says %q", got)
	}
}
