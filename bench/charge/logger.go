package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// lineLogger is the argument that makes this program a logging driver of containerd
// (binary:///PROGRAM?log-lines=FILE): it writes Docker's format with one write(2) for
// each line, as the paper's logger and most others do.
const lineLogger = "log-lines"

// logSize is what a log may grow to; then it starts again.
const logSize = 16 << 20

// The descriptors that containerd gives to a logging driver.
const (
	stdoutFD = 3
	stderrFD = 4
	readyFD  = 5 // closed when the driver is ready
)

// entry is a line of Docker's json-file format.
type entry struct {
	Log    string    `json:"log"`
	Stream string    `json:"stream"`
	Time   time.Time `json:"time"`
}

// lineLog is a log that is written line by line.
type lineLog struct {
	mu   sync.Mutex
	file *os.File
	size int
}

func openLog(path string) (*lineLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &lineLog{file: f}, err
}

// write appends a line, or starts the log again.
func (l *lineLog) write(stream, line string) error {
	data, err := json.Marshal(entry{line, stream, time.Now().UTC()})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > logSize {
		if err := l.file.Truncate(0); err != nil {
			return err
		}
		l.size = 0
	}
	n, err := l.file.Write(append(data, '\n'))
	l.size += n
	return err
}

// logLines is the driver.
func logLines(args []string) int {
	if len(args) != 1 {
		fmt.Fprintf(os.Stderr, "charge %s: want the file to log to\n", lineLogger)
		return 2
	}
	log, err := openLog(args[0])
	if err == nil {
		err = syscall.Close(readyFD)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "charge %s: %v\n", lineLogger, err)
		return 1
	}
	var streams sync.WaitGroup
	for fd, name := range map[uintptr]string{stdoutFD: "stdout", stderrFD: "stderr"} {
		streams.Add(1)
		go func() {
			defer streams.Done()
			r := bufio.NewReader(os.NewFile(fd, name))
			for {
				line, err := r.ReadString('\n')
				if line != "" {
					err2 := log.write(name, line)
					if err == nil {
						err = err2
					}
				}
				if err != nil {
					if !errors.Is(err, io.EOF) {
						fmt.Fprintf(os.Stderr, "charge %s: %v\n", lineLogger, err)
					}
					return
				}
			}
		}()
	}
	streams.Wait()
	return 0
}
