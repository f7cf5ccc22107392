// asynq with net/http: a task for each push. lines.py says what the variables are and what publishing does.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

var (
	url         = os.Getenv("PEER_URL")
	body        = os.Getenv("PEER_BODY")
	redis       = asynq.RedisClientOpt{Network: "unix", Addr: os.Getenv("PEER_REDIS")}
	concurrency = func() int { number, _ := strconv.Atoi(os.Getenv("PEER_CONCURRENCY")); return number }()
)

func start() {
	transport := &http.Transport{MaxIdleConnsPerHost: concurrency, MaxConnsPerHost: concurrency}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	push := func(ctx context.Context, task *asynq.Task) error {
		request, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(string(task.Payload())))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Authorization", os.Getenv("PEER_AUTHORIZATION"))
		answer, err := client.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		io.Copy(io.Discard, answer.Body)
		if answer.StatusCode >= 300 {
			return fmt.Errorf("answered %d", answer.StatusCode)
		}
		return nil
	}
	// Run returns at SIGTERM.
	server := asynq.NewServer(redis, asynq.Config{Concurrency: concurrency, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.WarnLevel})
	if err := server.Run(asynq.HandlerFunc(push)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func publish() {
	client := asynq.NewClient(redis)
	enqueue := func(number int) {
		text := strings.Replace(body, "@", strconv.Itoa(number), 1)
		if _, err := client.Enqueue(asynq.NewTask("push", []byte(text)), asynq.MaxRetry(1000)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var writing sync.Mutex
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var first, count int
		fmt.Sscan(lines.Text(), &first, &count)
		go func() {
			for number := first; number < first+count; number++ {
				enqueue(number)
			}
			writing.Lock()
			defer writing.Unlock()
			fmt.Println(first)
		}()
	}
}

func main() {
	map[string]func(){"start": start, "publish": publish}[os.Args[1]]()
}
