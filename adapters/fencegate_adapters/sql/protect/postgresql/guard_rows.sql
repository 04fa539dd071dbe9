-- Each row that is written passes the fence of its lock; one that moves to another lock passes both.
CREATE OR REPLACE FUNCTION fencegate.<<function>>() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS <<quote>>
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'fencing token required: TRUNCATE of %.% takes rows of many locks at once',
            quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
            USING ERRCODE = 'ZF003', HINT = 'Delete the rows, each under its lock.';
    ELSIF TG_OP = 'INSERT' THEN
        PERFORM fencegate.check_lock(<<new>>, <<record>>);
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM fencegate.check_lock(<<old>>, <<record>>);
    ELSE
        PERFORM fencegate.check_lock(<<old>>, <<record>>);
        IF (<<new>>) IS DISTINCT FROM (<<old>>) THEN
            PERFORM fencegate.check_lock(<<new>>, <<record>>);
        END IF;
    END IF;
    RETURN NULL;
END
<<quote>>
