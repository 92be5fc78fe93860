"""What a node serves: one module for each family of operations, each a class that answers its requests.

A request comes here decoded and checked, from a caller whose zone the broker has proven (`server`). An operation says what it
answers, refuses with a code of the table, or lets the request go unanswered. It holds no state that outlives a request but the
fetches that are parked.
"""
