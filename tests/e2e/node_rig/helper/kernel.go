package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const pollEvery = 200 * time.Millisecond

// keepKernel keeps the .effective files of the tree true, copies the pods' quotas, and removes the folders of pods that are gone.
func keepKernel() {
	folderOf("/kubepods/burstable")
	folderOf("/kubepods/besteffort")
	watch, err := syscall.InotifyInit1(syscall.IN_CLOEXEC)
	if err != nil {
		panic(err)
	}
	changed := make(chan bool, 1)
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			count, err := syscall.Read(watch, buffer)
			if err == nil && onlyEffective(string(buffer[:max(count, 0)])) {
				continue
			}
			select {
			case changed <- true:
			default:
			}
		}
	}()
	for {
		writeAllEffective()
		filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				// again for a known folder: the kernel keeps one watch a folder
				syscall.InotifyAddWatch(watch, path, syscall.IN_CLOSE_WRITE|syscall.IN_CREATE|syscall.IN_ONLYDIR)
				if strings.HasPrefix(entry.Name(), "pod") && !copyQuota(path) {
					os.RemoveAll(path)
				}
			}
			return nil
		})
		select {
		case <-changed:
		case <-time.After(pollEvery):
		}
	}
}

// onlyEffective: our own writes wake nobody.
func onlyEffective(names string) bool {
	for _, name := range []string{"cpuset.cpus\x00", "cpuset.mems\x00", "cgroup.events\x00"} {
		if strings.Contains(names, name) {
			return false
		}
	}
	return strings.Contains(names, ".effective")
}
