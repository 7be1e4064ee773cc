package host

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tsugiki/tsugiki/internal/setup"
)

// initializing is the pause before a containerd is asked again that takes calls, and cannot answer them yet.
const initializing = 50 * time.Millisecond

// NotLoaded asks containerd at a socket what it has read of its configuration. Of some runtimes, by the
// names of their handlers and with their tables in the file, it returns those that containerd does not
// know, or knows otherwise. Of a runtime without a table, the name alone counts.
func NotLoaded(ctx context.Context, socket string, runtimes map[string]map[string]any) (names []string, err error) {
	err = ask(socket, func(client cri.RuntimeServiceClient) error {
		status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
		for err != nil && strings.Contains(err.Error(), "not initialized yet") && ctx.Err() == nil {
			time.Sleep(initializing)
			status, err = client.Status(ctx, &cri.StatusRequest{Verbose: true})
		}
		if err == nil {
			names, err = notLoaded(status, runtimes)
		}
		return err
	})
	return names, err
}

func notLoaded(status *cri.StatusResponse, runtimes map[string]map[string]any) (names []string, err error) {
	l, err := read(status)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		is, err := l.has(name, runtimes[name])
		if err != nil {
			return nil, err
		}
		if !is {
			names = append(names, name)
		}
	}
	return names, nil
}

// loaded is what containerd has read when it started.
type loaded struct {
	handlers []string                  // from containerd 2 on
	runtimes map[string]map[string]any // by the keys of its answer
}

// read reads an answer. containerd lists its handlers from 2.0 on. Its configuration is there before, too.
func read(status *cri.StatusResponse) (loaded, error) {
	var c struct {
		Containerd struct {
			Runtimes map[string]map[string]any `json:"runtimes"`
		} `json:"containerd"`
	}
	l := loaded{}
	for _, h := range status.RuntimeHandlers {
		l.handlers = append(l.handlers, h.Name)
	}
	err := json.Unmarshal([]byte(status.Info["config"]), &c)
	l.runtimes = c.Containerd.Runtimes
	if err != nil && len(l.handlers) == 0 {
		return l, fmt.Errorf("read the configuration that containerd tells: %w", err)
	}
	return l, nil
}

// has tells whether containerd has a runtime with a table. A key that its answer does not have is one that
// this containerd does not know.
func (l loaded) has(name string, table map[string]any) (bool, error) {
	now, is := l.runtimes[name]
	if !is || table == nil {
		return is || slices.Contains(l.handlers, name), nil
	}
	text, err := json.Marshal(table)
	if err != nil {
		return false, err
	}
	var want map[string]any
	if err := json.Unmarshal(text, &want); err != nil {
		return false, err
	}
	for _, key := range slices.Concat(setup.OfOurs, setup.Inherited) {
		if got, known := now[key.Answer]; known && !equal(want[key.Name], got) {
			return false, nil
		}
	}
	return true, nil
}

// equal compares values of JSON. A key whose value is zero is as none.
func equal(a, b any) bool {
	x, isX := a.(map[string]any)
	y, isY := b.(map[string]any)
	if isX || isY {
		for _, key := range slices.Concat(slices.Collect(maps.Keys(x)), slices.Collect(maps.Keys(y))) {
			if !equal(x[key], y[key]) {
				return false
			}
		}
		return (isX || isZero(a)) && (isY || isZero(b))
	}
	return isZero(a) && isZero(b) || reflect.DeepEqual(a, b)
}

func isZero(value any) bool {
	if value == nil || reflect.ValueOf(value).IsZero() {
		return true
	}
	list, is := value.([]any)
	return is && len(list) == 0
}
